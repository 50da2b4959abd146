"""Values of features as a program gives them, as the message of a request."""

import numpy as np
import pytest

from megalith.errors import DtypeMismatch, InvalidRequest
from megalith.serving._values import features_to_proto


@pytest.mark.parametrize(
    ("values", "number"),
    [
        ([["v1"], [None]], 1),
        (["v1", None], 1),
        ([None, "v1"], 0),
        ([[5], [6, None]], 1),
        ([5, None], 1),
        ([["a"], None], 1),
        ([None], 0),
        (np.array(["v1", None], object), 1),
    ],
)
def test_none_is_refused_with_the_way_to_say_that_there_is_no_value(values, number):
    with pytest.raises(
        InvalidRequest, match=rf"feature user: example {number} has None.*\[\[5\], "
    ):
        features_to_proto({"user": values})


@pytest.mark.parametrize("values", [[["v1"], []], [[], ["v1"]]])
def test_an_example_with_an_empty_list_has_no_value(values):
    (message,) = features_to_proto({"user": values})
    assert list(message.texts) == [b"v1"]
    splits = np.frombuffer(message.row_splits, "<i8")
    np.testing.assert_array_equal(np.diff(splits), [len(each) for each in values])


def test_numbers_among_text_are_refused_as_such():
    with pytest.raises(DtypeMismatch, match="feature user: 5 is among text"):
        features_to_proto({"user": [["v1"], [5]]})


def test_fractions_in_a_feature_are_told_what_to_give():
    with pytest.raises(DtypeMismatch) as refused:
        features_to_proto({"item": [7.0]})
    assert str(refused.value) == "feature item: [7.0]: give whole numbers, or text"

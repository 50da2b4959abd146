import json

import numpy as np
import pytest

from megalith.client import SummaryKind, errors, feature_insight_summary, nas_summary

NAMES = ["f1", "f2", "f3"]
GROUPS = [["f1", "f2"], ["f3", "f4"], ["f5", "f6"]]


@pytest.mark.golden("G18")
def test_the_head_of_gating_weights_has_sizes_and_groups():
    summary = nas_summary([0.5, 0.8], NAMES, [3, 5, 9], groups=GROUPS)
    assert summary.head == (
        '{"tag_type": "gating", "segment_names": ["f1", "f2", "f3"], '
        '"segment_sizes": [3, 5, 9], "group_index": [0, 0, 1]}'
    )


@pytest.mark.golden("G18")
def test_the_head_of_selecting_weights_has_the_sizes_to_choose_from():
    summary = nas_summary([0.5, 0.8], NAMES, [[3, 6], [5, 10], [4, 8, 16]])
    assert summary.head == (
        '{"tag_type": "selecting", "segment_names": ["f1", "f2", "f3"], '
        '"segment_sizes": [[3, 6], [5, 10], [4, 8, 16]]}'
    )


@pytest.mark.golden("G17")
def test_nas_weights_have_their_tag_and_values():
    summary = nas_summary(np.array([0.5, 0.8]), NAMES, np.array([3, 5, 9]))
    assert (summary.tag, summary.description) == ("gating/monolith_nas_weight", "gating")
    assert summary.values.tolist() == [0.5, 0.8]
    assert json.loads(summary.head)["group_index"] == [0, 1, 2]


@pytest.mark.golden("G17", "G18")
def test_feature_insight_to_train_on_has_the_products_and_the_label():
    rng = np.random.default_rng(0)
    inputs = rng.random((3, 17), np.float32)
    weight = rng.random((17, 2), np.float32)
    label = [1, 0, 1]
    summary = feature_insight_summary(inputs, NAMES, [3, 5, 9], weight=weight, label=label)

    assert summary.tag == "fi_train/monolith_feature_insight"
    assert summary.head == (
        '{"tag_type": "fi_train", "segment_names": ["f1", "f2", "f3"], '
        '"segment_sizes": [2, 2, 2], "group_index": [0, 1, 2], "label_size": 1}'
    )
    assert summary.values.shape == (3, 7)
    for example in range(3):
        expected = []
        for start, end in ((0, 3), (3, 8), (8, 17)):
            for column in range(2):
                pairs = zip(inputs[example, start:end], weight[start:end, column], strict=True)
                expected.append(sum(float(a) * float(b) for a, b in pairs))
        expected.append(label[example])
        np.testing.assert_allclose(summary.values[example], expected, rtol=1e-5)


def test_feature_insight_without_a_label_adds_up_the_squares_of_each_part():
    inputs = np.array([[1, 2, 3], [0, 1, 0]], np.float32)
    weight = np.array([[1, 0], [0, 1], [2, 2]], np.float32)
    summary = feature_insight_summary(inputs, ["a", "b"], [2, 1], weight=weight, name="mine")
    # a: (1, 2) and (0, 1); b: (6, 6) and (0, 0)
    assert summary.values.tolist() == [[5, 72], [1, 0]]
    assert summary.tag == "mine_fi_direct/monolith_feature_insight"
    assert summary.head == (
        '{"tag_type": "fi_direct", "segment_names": ["a", "b"], '
        '"segment_sizes": [1, 1], "label_size": 0}'
    )


def test_without_a_weight_inputs_and_sizes_stay_and_a_wide_label_is_appended():
    inputs = np.arange(6).reshape(2, 3)
    summary = feature_insight_summary(inputs, ["a", "b"], [2, 1], label=[[1, 2], [3, 4]])
    assert summary.values.tolist() == [[0, 1, 2, 1, 2], [3, 4, 5, 3, 4]]
    head = json.loads(summary.head)
    assert (head["segment_sizes"], head["label_size"]) == ([2, 1], 2)


def test_a_kind_that_is_given_wins():
    summary = nas_summary([1.0], ["a"], [3], kind=SummaryKind.MIXED, description="mine")
    assert summary.tag == "mixed/monolith_nas_weight"
    assert json.loads(summary.head) == {
        "tag_type": "mixed",
        "segment_names": ["a"],
        "segment_sizes": [3],
    }
    assert summary.description == "mine"


def test_groups_that_none_of_the_names_is_in_are_not_counted():
    summary = nas_summary([1.0], ["f5", "f1"], [1, 1], groups=GROUPS)
    assert json.loads(summary.head)["group_index"] == [1, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nas_summary([1.0], ["a"], [1, 2]), "1 names, but 2 sizes"),
        (lambda: nas_summary([1.0], ["x"], [1], groups=GROUPS), r"\['x'\] are in no group"),
        (
            lambda: feature_insight_summary(np.ones((2, 3)), ["a"], [2]),
            r"inputs of shape \[2, 3\], expected a matrix of 2 columns",
        ),
        (
            lambda: feature_insight_summary(np.ones((2, 3)), ["a"], [3], weight=np.ones((2, 2))),
            r"weight of shape \[2, 2\], expected a matrix of 3 lines",
        ),
        (
            lambda: feature_insight_summary(np.ones((2, 3)), ["a"], [3], label=[1, 2, 3]),
            r"label of shape \[3\], expected one of 2 examples",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(make, message):
    with pytest.raises((errors.ShapeMismatch, errors.InvalidRequest), match=message):
        make()

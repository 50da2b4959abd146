"""Names of blobs."""

import pytest

from megalith.errors import InvalidRequest
from megalith.schema.blobs import check_blob_name


@pytest.mark.parametrize("name", ["a", "head/weights 1", "é" * 128, "x" * 256])
def test_a_name_of_1_to_256_bytes_is_taken(name):
    check_blob_name(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is empty"),
        ("x" * 257, "has 257 bytes, the most is 256"),
        ("é" * 129, "has 258 bytes, the most is 256"),
        (7, "expected a text"),
        (b"head", "expected a text"),
        (None, "expected a text"),
        ("\ud800", "not UTF-8"),
    ],
)
def test_other_names_are_refused(name, said):
    with pytest.raises(InvalidRequest, match=said):
        check_blob_name(name)

"""One of a thing is not called several."""

import pytest

from megalith.runtime.counting import counted


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1234, "1,234 files")]
)
def test_a_count_of_one_has_no_plural(count, said):
    assert counted(count, "file") == said


def test_a_plural_may_be_said():
    assert counted(1, "batch is", "batches are") == "1 batch is"
    assert counted(3, "batch is", "batches are") == "3 batches are"

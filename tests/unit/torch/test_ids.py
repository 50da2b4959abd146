"""Ids as tensors: what a lookup makes of them."""

import itertools

import pytest

from megalith.errors import InvalidRequest

torch = pytest.importorskip("torch", reason="needs: pip install torch==2.13.0")

from megalith.torch._embedding import as_arrays  # noqa: E402

PADDED = torch.tensor([[1, 0, 0], [2, 3, 0], [4, 5, 6]])


def lists_of(ids):
    ragged = as_arrays({"film": ids})["film"]
    values = ragged.values.tolist()
    bounds = ragged.row_splits.tolist()
    return [values[begin:end] for begin, end in itertools.pairwise(bounds)]


def test_a_jagged_tensor_is_a_list_for_each_example():
    lists = [torch.tensor([7]), torch.tensor([], dtype=torch.int64), torch.tensor([8, 9])]
    assert lists_of(torch.nested.nested_tensor(lists, layout=torch.jagged)) == [[7], [], [8, 9]]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([1, 2, 3], [[1], [2, 3], [4, 5, 6]]), ([1, 2, 2], [[1], [2, 3], [4, 5]])],
)
def test_padding_that_was_narrowed_away_is_no_id(lengths, expected):
    starts = torch.zeros(3, dtype=torch.int64)
    narrowed = torch.nested.narrow(PADDED, 1, starts, torch.tensor(lengths), layout=torch.jagged)
    assert lists_of(narrowed) == expected


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_of_another_layout_is_refused_with_the_way_out():
    strided = torch.nested.nested_tensor([torch.tensor([1]), torch.tensor([2, 3])])
    with pytest.raises(InvalidRequest, match=r"make it with layout=torch.jagged"):
        as_arrays({"film": strided})

"""When a full save takes the place of increments."""

from pathlib import Path

import pytest

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.increments import Chain, Increment
from megalith.checkpoint.manifest import Manifest, ShardFile
from megalith.controller.saving.increments import is_long

MB = 1 << 20


def of_size(num_bytes):
    file = ShardFile("table", FileKind.TABLE, "t", 1, num_bytes, "")
    return Manifest(1, 1, 1.0, (file,), save_id="id")


def chain_of(base_bytes, *increment_bytes):
    directory = Path("model.ckpt-1")
    parts = tuple(Increment(directory, of_size(size)) for size in increment_bytes)
    return Chain(directory, of_size(base_bytes), parts)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (chain_of(1000 * MB), False),
        (chain_of(1000 * MB, 300 * MB, 200 * MB), False),
        (chain_of(1000 * MB, 300 * MB, 201 * MB), True),
        (chain_of(1 * MB, 60 * MB), False),  # a small model, mostly of variables
        (chain_of(1 * MB, 60 * MB, 5 * MB), True),
        (chain_of(1000 * MB, *[1] * 999), False),
        (chain_of(1000 * MB, *[1] * 1000), True),
    ],
)
def test_increments_are_replaced_when_they_are_half_of_the_checkpoint_or_very_many(chain, expected):
    assert is_long(chain) == expected

"""How a large variable is split over parameter servers: runs of rows, each of which a ps treats as a variable.

    shape (5, 40000) on 2 ps  ->  "w@0/2" rows 0..3 on the ps that owns "w",  "w@1/2" rows 3..5 on the next one

The rule depends on the number of servers. A checkpoint that is loaded at another number is split anew.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megalith.wire.validation import require

SPLIT_BYTES = 131_072  # a variable above this is split
_PART_KEY = re.compile(r".*@\d+/\d+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Part:
    """One run of rows of a variable that is split. `rows` is the extent of the whole along its first axis."""

    index: int
    count: int
    rows: int

    def __post_init__(self) -> None:
        require(
            2 <= self.count <= self.rows and 0 <= self.index < self.count,
            f"part {self.index} of {self.count} of a variable of {self.rows} rows does not exist",
        )

    @property
    def start(self) -> int:
        """The first row."""
        return self.index * (self.rows // self.count) + min(self.index, self.rows % self.count)

    @property
    def stop(self) -> int:
        """One behind the last row."""
        return self.start + self.rows // self.count + (self.index < self.rows % self.count)


def key_of(name: str, part: Part | None) -> str:
    """How requests name a variable or a part of it."""
    return name if part is None else f"{name}@{part.index}/{part.count}"


def is_part_key(name: str) -> bool:
    return _PART_KEY.fullmatch(name) is not None


def name_of(key: str) -> str:
    """The variable that a key of `key_of` is, or is a part of."""
    return key.rpartition("@")[0] if is_part_key(key) else key


def count_of(key: str) -> int:
    """In how many parts the variable of a key is held."""
    return int(key.rpartition("/")[2]) if is_part_key(key) else 1


def num_parts(shape: Sequence[int], itemsize: int, num_ps: int) -> int:
    """Parts of a variable, at most one per ps; 1 = it stays whole, as everything up to 128 KiB does."""
    row_bytes = itemsize
    for extent in shape[1:]:
        row_bytes *= extent
    if not shape or row_bytes * shape[0] <= SPLIT_BYTES:
        return 1
    rows_per_part = max(1, SPLIT_BYTES // row_bytes)
    return min(num_ps, -(-shape[0] // rows_per_part))


def parts_of(rows: int, count: int) -> list[Part | None]:
    """The parts in order; [None] for a variable that is whole."""
    return [None] if count == 1 else [Part(index, count, rows) for index in range(count)]


@dataclass(frozen=True, slots=True)
class VariableShape:
    """What a client must know of a variable to read or change it: the whole array, and in how many parts it is."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: int
    takes_gradients: bool

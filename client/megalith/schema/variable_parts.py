"""How a large variable is split over parameter servers: into runs of rows.

A ps treats each run as a variable.

    shape (5, 40000) on 2 ps  ->  "w@0/2" rows 0..3 on the ps that owns "w",  "w@1/2" rows 3..5 on
    the next one

The rule depends on the number of servers. A checkpoint that is loaded at another number is split
anew.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megalith.schema.checks import require

SPLIT_BYTES = 131_072  # a variable above this is split
_PART_NAME = re.compile(r".*@\d+/\d+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Part:
    """One run of rows of a variable that is split.

    `rows` is the extent of the whole along its first axis.
    """

    index: int
    count: int
    rows: int

    def __post_init__(self) -> None:
        has_rows = 2 <= self.count <= self.rows
        is_one_of_them = 0 <= self.index < self.count
        require(
            has_rows and is_one_of_them,
            f"part {self.index} of {self.count} of a variable of {self.rows} rows does not exist",
        )

    @property
    def start(self) -> int:
        """The first row."""
        share, num_longer = divmod(self.rows, self.count)  # the first parts have one row more
        longer_before = min(self.index, num_longer)
        return self.index * share + longer_before

    @property
    def stop(self) -> int:
        """One behind the last row."""
        share, longer = divmod(self.rows, self.count)
        is_longer = self.index < longer
        return self.start + share + is_longer


def part_name(name: str, part: Part | None) -> str:
    """How requests name a variable that is whole, or a part of one."""
    return name if part is None else numbered_part(name, part.index, part.count)


def numbered_part(name: str, index: int, count: int) -> str:
    """The same, by number; a variable in one part is whole."""
    return name if count == 1 else f"{name}@{index}/{count}"


def is_part_name(name: str) -> bool:
    return _PART_NAME.fullmatch(name) is not None


def variable_of(asked: str) -> str:
    """The variable that a request of the name `asked` is for, or for a part of."""
    if not is_part_name(asked):
        return asked

    name, _, _ = asked.rpartition("@")
    return name


def count_of(asked: str) -> int:
    """In how many parts the variable of such a name is held."""
    if not is_part_name(asked):
        return 1

    _, _, count = asked.rpartition("/")
    return int(count)


def num_parts(shape: Sequence[int], itemsize: int, num_ps: int) -> int:
    """Parts of a variable, at most one per ps.

    1 = it stays whole, as everything up to 128 KiB does.
    """
    if not shape:
        return 1

    rows = shape[0]
    row_bytes = itemsize * math.prod(shape[1:])
    if row_bytes * rows <= SPLIT_BYTES:
        return 1

    rows_per_part = max(1, SPLIT_BYTES // row_bytes)
    parts = -(-rows // rows_per_part)
    return min(num_ps, parts)


def parts_of(rows: int, count: int) -> list[Part | None]:
    """The parts in order; [None] for a variable that is whole."""
    if count == 1:
        return [None]

    return [Part(index, count, rows) for index in range(count)]


@dataclass(frozen=True, slots=True)
class VariableShape:
    """What a client must know of a variable to read or change it.

    Dtype and shape are those of the whole; `parts` says in how many parts servers hold it.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: int
    takes_gradients: bool

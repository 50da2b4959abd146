"""The blocks of a table's file: which bytes of it are the rows of which buckets.

The first block is the head of the file, which describes the table, and the last one its end, which
is for other readers of Arrow files. Each of the others is a record batch with the rows of a few
neighbouring buckets. A manifest has a line for each, in their order:

    none 0 0 1160 8d2f1c07            no rows; from byte 0 on 1160 bytes, and their CRC-32
    0-31 8192 1160 1229640 51ab09ee   8192 rows of the buckets 0 to 31, and so on

So a ps reads, and checks, only the blocks that have rows of its own buckets, the head and the end.
"""

from typing import NamedTuple

from megalith.checkpoint.layout.crc import crc32
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.object_store import StorageFailed
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import Bools

_NONE = "none"


class Block(NamedTuple):
    """`size` bytes from `offset` on. Its rows are of the buckets first..last, or there are none."""

    first: int
    last: int
    rows: int
    offset: int
    size: int
    crc32: int

    def __str__(self) -> str:
        buckets = _NONE
        if self.rows:
            buckets = f"{self.first}-{self.last}"

        fields = [
            buckets,
            str(self.rows),
            str(self.offset),
            str(self.size),
            f"{self.crc32:08x}",
        ]
        return " ".join(fields)

    def is_about(self, buckets: Bools) -> bool:
        """Whether it may have rows of these."""
        if not self.rows:
            return False

        own = buckets[self.first : self.last + 1]
        return bool(own.any())


def blocks_of(file: ShardFile) -> list[Block]:
    """The blocks that the manifest lists; none in early versions.

    CheckpointDamaged unless they follow each other and have all rows of the file.
    """
    try:
        blocks = [_parsed(line) for line in file.blocks]
    except ValueError as error:
        raise CheckpointDamaged(f"the manifest gives {file.name} a block {error}") from error

    end = 0
    for block in blocks:
        if block.offset != end:
            raise CheckpointDamaged(f"the manifest lacks a block of {file.name} at byte {end}")

        end += block.size

    rows = sum(block.rows for block in blocks)
    if blocks and (rows != file.rows or end != file.bytes):
        raise CheckpointDamaged(
            f"the manifest gives {file.name} {file.rows} rows in {file.bytes} bytes, "
            f"and its blocks {rows} rows in {end} bytes"
        )

    return blocks


def read(directory: Location, file: ShardFile, block: Block) -> bytes:
    """The bytes of a block; CheckpointDamaged unless they are those that were written."""
    path = directory / file.name
    try:
        data = stored.read_part(path, block.offset, block.size)
    except StorageFailed:
        raise  # that says nothing about the file
    except OSError as error:
        raise CheckpointDamaged(f"{path} cannot be read: {error.strerror or error}") from error

    check(path, block, data)
    return data


def check(path: Location, block: Block, data: bytes) -> None:
    """CheckpointDamaged unless a block of a file has these bytes."""
    size = len(data)
    found = crc32(data)
    if size == block.size and found == block.crc32:
        return

    place = f"from byte {block.offset} on"
    if size != block.size:
        fault = f"{place} it has {size} bytes of a block, the manifest says {block.size}"
    else:
        fault = (
            f"the {size} bytes {place} have the CRC-32 {found:08x}, "
            f"the manifest says {block.crc32:08x}"
        )

    raise CheckpointDamaged(f"{path} is not what was written: {fault}")


def _parsed(line: str) -> Block:
    try:
        buckets, rows, offset, size, checksum = line.split(" ")
        first, last = _bounds(buckets)
        return Block(
            first,
            last,
            int(rows),
            int(offset),
            int(size),
            int(checksum, 16),
        )
    except ValueError:
        raise ValueError(repr(line)) from None


def _bounds(buckets: str) -> tuple[int, int]:
    if buckets == _NONE:
        return 0, -1

    first, last = buckets.split("-")
    return int(first), int(last)

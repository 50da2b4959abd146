"""Monolith's record files: which belong together, and the records in them.

A table is in several files `<base>-00000-of-00002`, `<base>-00001-of-00002`, ... Each is a TFRecord
file, which may be compressed with Snappy as a whole: blocks of 4 bytes length, the highest first,
and so many bytes that Snappy has made.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from megalith.errors import CheckpointDamaged
from megalith.kernels import crc32c, records
from megalith.kernels.dtypes import I64, U8

_SHARD = re.compile(r"(?P<base>.+)-(?P<index>\d{5})-of-(?P<total>\d{5})")
_UNFINISHED = re.compile(r"-tmp-\d+")
_CHUNK = 8 << 20
_MOST_RECORDS = 1 << 16  # that are handed out at once
_LARGEST_BLOCK = 1 << 30  # bytes of a Snappy block; Monolith writes 256 KiB


class Records(NamedTuple):
    """Some records: record i is data[begins[i]:ends[i]]."""

    data: U8
    begins: I64
    ends: I64

    def of(self, number: int) -> bytes:
        begin = self.begins[number]
        end = self.ends[number]
        return self.data[begin:end].tobytes()


def file_sets(folder: Path) -> dict[str, list[Path]]:
    """The files of each base, in order; CheckpointDamaged if one of a set is missing."""
    found: dict[str, dict[int, Path]] = {}
    totals: dict[str, set[int]] = {}

    for path in sorted(folder.iterdir()):
        parts = _SHARD.fullmatch(path.name)
        if parts is None or _UNFINISHED.search(path.name):
            continue

        base = parts["base"]
        index = int(parts["index"])
        total = int(parts["total"])

        found.setdefault(base, {})[index] = path
        totals.setdefault(base, set()).add(total)

    sets = {}

    for base, path_by_index in found.items():
        stated = sorted(totals[base])
        if len(stated) > 1:
            raise CheckpointDamaged(
                f"{folder / base}-*: its files are of sets of {stated}; "
                "remove those that do not belong there"
            )

        total = stated[0]
        wanted = set(range(total))
        missing = sorted(wanted - path_by_index.keys())
        too_many = sorted(path_by_index.keys() - wanted)

        if missing or too_many:
            what = f"{missing} are missing" if missing else f"{too_many} are too many"
            raise CheckpointDamaged(f"{folder / base}-*: of {total} files {what}")

        sets[base] = [path_by_index[index] for index in range(total)]

    return sets


class RecordFile:
    """The records of one file, in order."""

    def __init__(self, path: Path, *, is_snappy: bool = False) -> None:
        self._path = path
        self._chunks = _snappy_chunks(path) if is_snappy else _chunks(path)
        self._rest = b""
        self._at = 0  # bytes of what is unpacked before the rest

    def read(self, limit: int = _MOST_RECORDS) -> Records | None:
        """The next records, at most `limit`; None at the end of the file.

        CheckpointDamaged if a checksum is wrong or the file ends inside a record.
        """
        begins = np.empty(min(limit, _MOST_RECORDS), np.int64)
        ends = np.empty_like(begins)
        while True:
            data = np.frombuffer(self._rest, np.uint8)
            count, used, status, needed = records.split(data, crc32c.TABLES, begins, ends)
            if count:
                self._at += used
                self._rest = self._rest[used:]
                return Records(data, begins[:count], ends[:count])

            if status != records.WHOLE:
                what = "length" if status == records.BAD_LENGTH else "data"
                raise CheckpointDamaged(
                    f"{self._path}: the checksum of the {what} of the record at byte {self._at} "
                    "is wrong"
                )

            if not self._extend(needed):
                if self._rest:
                    raise CheckpointDamaged(
                        f"{self._path} ends inside the record at byte {self._at}: it was cut"
                    )

                return None

    def _extend(self, needed: int) -> bool:
        """Have at least so many bytes, if the file has them; whether there are more than before."""
        parts = [self._rest]
        size = len(self._rest)
        before = size
        while size <= before or size < needed:
            chunk = next(self._chunks, None)
            if chunk is None:
                break

            parts.append(chunk)
            size += len(chunk)

        self._rest = b"".join(parts)
        return size > before


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise CheckpointDamaged(f"{path} cannot be read: {error.strerror or error}") from error


def _snappy_chunks(path: Path) -> Iterator[bytes]:
    """What the blocks of a file unpack to, several of them joined."""
    parts: list[bytes] = []
    size = 0
    try:
        with open(path, "rb") as file:
            while header := file.read(4):
                length = int.from_bytes(header, "big")
                block = file.read(min(length, _LARGEST_BLOCK))

                if len(header) < 4 or len(block) < length:
                    raise CheckpointDamaged(f"{path} ends inside a Snappy block: it was cut")

                parts.append(_unpacked(path, block))
                size += len(parts[-1])

                if size >= _CHUNK:
                    yield b"".join(parts)
                    parts = []
                    size = 0
    except OSError as error:
        raise CheckpointDamaged(f"{path} cannot be read: {error.strerror or error}") from error

    if parts:
        yield b"".join(parts)


def _unpacked(path: Path, block: bytes) -> bytes:
    """A block begins with the length of what it unpacks to, seven bits a byte, lowest first."""
    length = 0
    for number, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            break

    try:
        if length > _LARGEST_BLOCK:
            raise ValueError(f"it claims to unpack to {length} bytes")

        unpacked: bytes = pa.decompress(block, length, codec="snappy", asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CheckpointDamaged(f"{path} has a block that is not Snappy's: {error}") from error

    return unpacked

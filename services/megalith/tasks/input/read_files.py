"""Which files a worker has read: the cursor of a stream of files.

Files are known by a hash of their path, sorted by the hour that the path names. Only the newest
hours are remembered one by one. What is older is closed: its files count as read, so that a cursor
stays small however long a job runs.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from megalith.errors import BadData, InvalidRequest

OPEN_HOURS = 48
MOST_FILES = 3_500  # of the open hours; a cursor has 17 bytes for each, and at most 64 KiB


@dataclass(slots=True)
class ReadFiles:
    """The files that are read, and how far the one after them is.

    `rows` are those of the worker's own blocks of the file `path`. Hours up to `closed` are read.
    """

    files: dict[int, list[str]] = field(default_factory=dict)  # hashes by hour
    closed: int = -1
    path: str = ""
    rows: int = 0

    @classmethod
    def parse(cls, cursor: bytes) -> Self:
        if not cursor:
            return cls()

        try:
            content = json.loads(cursor)
            files = {int(hour): text.split() for hour, text in content["files"].items()}
            return cls(files, content["closed"], content["path"], content["rows"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidRequest(
                f"the input cursor {cursor[:60]!r} is of another kind of input; "
                "to read from the start, set --input-cursors false"
            ) from None

    def encoded(self) -> bytes:
        files = {str(hour): " ".join(hashes) for hour, hashes in self.files.items()}
        content = {
            "files": files,
            "closed": self.closed,
            "path": self.path,
            "rows": self.rows,
        }
        return json.dumps(content).encode()

    def has(self, hour: int, path: str) -> bool:
        return _has_hash(self, hour, hash_of(path))

    def rows_of(self, path: str) -> int:
        return self.rows if path == self.path else 0

    def add(self, hour: int, path: str, first_waiting: int | None = None) -> None:
        """The file is read to its end. Hours from `first_waiting` on stay open."""
        self.files.setdefault(hour, []).append(hash_of(path))
        self.path = ""
        self.rows = 0
        while len(self.files) > OPEN_HOURS:
            oldest = min(self.files)
            if first_waiting is not None and oldest >= first_waiting:
                break

            self.closed = oldest
            del self.files[oldest]

        count = sum(len(hashes) for hashes in self.files.values())
        if count > MOST_FILES:
            raise BadData(
                f"more than {MOST_FILES:,} files are read that have no date, or one of the last "
                f"{OPEN_HOURS} hours; put {{date}} into the pattern, write fewer, larger files, "
                "or give --sharding dynamic"
            )


def read_by_all(saved: Sequence[ReadFiles]) -> ReadFiles:
    """What every worker has read to its end: the rest can be divided anew."""
    # An hour that one has closed is open for this one, which names its files.
    slowest = min(saved, key=lambda read: read.closed)
    files = {}
    for hour, hashes in slowest.files.items():
        common = list(hashes)
        for read in saved:
            common = [each for each in common if _has_hash(read, hour, each)]

        if common:
            files[hour] = common

    return ReadFiles(files, slowest.closed)


def _has_hash(read: ReadFiles, hour: int, hashed: str) -> bool:
    if hour <= read.closed:
        return True

    hashes = read.files.get(hour, ())
    return hashed in hashes


def hash_of(path: str) -> str:
    return hashlib.blake2b(path.encode(), digest_size=8).hexdigest()

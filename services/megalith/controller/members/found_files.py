"""Which files are known as pieces already, in bounded memory.

Files are known by a hash of their path, sorted by the hour that the path names. Only the newest
hours are remembered one by one. What is older is closed: its files count as known.

The files of hours that were closed lately are remembered a while longer, in memory alone. So a file
that came too late is not mixed up with one that another worker has told of before.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Self

from megalith.errors import BadData
from megalith.wire.pieces import FoundFile

_OPEN_HOURS = 48
_MOST_FILES = 20_000  # of the open hours; the journal and checkpoints have 17 bytes for each
_MOST_CLOSED = 20_000  # of the hours that were closed lately
_MOST_LATE = 1000  # the newest ones, in the journal


@dataclass(slots=True)
class FoundFiles:
    """Hours up to `closed` are known, whatever their files are.

    What the files of hours up to `forgotten` were is not remembered.
    """

    hashes_by_hour: dict[int, set[str]] = field(default_factory=dict)
    closed: int = -1
    forgotten: int = -1
    closed_lately: dict[int, set[str]] = field(default_factory=dict)

    def is_late(self, file: FoundFile) -> bool:
        """Whether its hour was closed without it.

        Of a forgotten hour it is: workers tell of no file that was there when they first looked.
        """
        if file.hour > self.closed:
            return False
        if file.hour <= self.forgotten:
            return True

        return _hash_of(file.path) not in self.closed_lately.get(file.hour, ())

    def add(self, file: FoundFile) -> bool:
        """Remember a file; False if it is known."""
        if file.hour <= self.closed:
            return False

        hashes = self.hashes_by_hour.setdefault(file.hour, set())
        hashed = _hash_of(file.path)
        if hashed in hashes:
            return False

        if _count(self.hashes_by_hour) >= _MOST_FILES:
            raise BadData(
                f"{file.path}: {_MOST_FILES:,} files are known that have no date, or one of the "
                f"last {_OPEN_HOURS} hours; put {{date}} into the pattern, or write fewer, larger "
                "files"
            )

        hashes.add(hashed)
        while len(self.hashes_by_hour) > _OPEN_HOURS:
            self._close(min(self.hashes_by_hour))

        return True

    def _close(self, hour: int) -> None:
        self.closed = hour
        self.closed_lately[hour] = self.hashes_by_hour.pop(hour)
        while _count(self.closed_lately) > _MOST_CLOSED:
            self.forgotten = min(self.closed_lately)
            del self.closed_lately[self.forgotten]

    def texts(self) -> dict[str, str]:
        """As JSON keeps them."""
        texts = {}
        for hour, hashes in self.hashes_by_hour.items():
            texts[str(hour)] = " ".join(sorted(hashes))

        return texts

    @classmethod
    def of_texts(cls, texts: dict[str, str], closed: int) -> Self:
        found = cls(closed=closed, forgotten=closed)
        for hour, text in texts.items():
            hashes = set(text.split())
            found.hashes_by_hour[int(hour)] = hashes

        return found


@dataclass(slots=True)
class LateFiles:
    """Which worker was the first to tell of a file that came too late: it counts the file.

    Each worker finds the file for itself, and together they count it once.
    """

    tellers: dict[str, str] = field(default_factory=dict)  # incarnations by the hash of the path

    def is_counted_by(self, incarnation: str, file: FoundFile) -> bool:
        """The same answer again if it is asked again, because the first one was lost."""
        hashed = _hash_of(file.path)
        teller = self.tellers.setdefault(hashed, incarnation)
        if len(self.tellers) > _MOST_LATE:
            oldest = next(iter(self.tellers))
            del self.tellers[oldest]

        return teller == incarnation


def _count(hashes_by_hour: dict[int, set[str]]) -> int:
    return sum(len(hashes) for hashes in hashes_by_hour.values())


def _hash_of(path: str) -> str:
    digest = hashlib.blake2b(path.encode(), digest_size=8)
    return digest.hexdigest()

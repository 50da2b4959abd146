"""Calls that all ranks make together, and how they end together.

Before each call the ranks compare what they are about to do:

    rank 0   going on, call 17, an exchange of 800 and 640 bytes
    rank 1   failed: "step 12: the loss is nan"

So whichever call the others wait in, they hear of a rank that has failed and of one that is
somewhere else, instead of waiting for it. One that says nothing any more is noticed by the engine.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.collective.engine import F32, Engine, OneRank
from megalith.errors import MegalithError, RankFailed, RanksDiffer

logger = logging.getLogger(__name__)

_MAX_REASON = 4000  # bytes that a rank says about its failure
_SHOWN = 80  # characters of a difference


class _Call(IntEnum):
    FAILED = 0
    GATHER = 1
    EXCHANGE = 2
    TOTAL = 3


class Ranks:
    """One of several processes that train together: `index` of `count`.

    Every rank makes the same calls in the same order. RankFailed, RankSilent or RanksDiffer end
    that for good, on all ranks. For one thread.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = engine or OneRank()
        self.index = self._engine.rank
        self.count = self._engine.size
        self._num_calls = 0
        self._is_over = False  # the others have been told, or cannot be told any more
        self.is_broken = False  # a call was left in the middle: ranks may wait in it

    @property
    def engine_name(self) -> str:
        return self._engine.name

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """The arrays of all ranks, of one shape and dtype, by rank."""
        self._meet(_Call.GATHER, values.nbytes)
        with self._inside_a_call():
            return self._engine.gather(values)

    def exchange(self, parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Give each rank its part; what each has given to this one. All are of one dtype."""
        dtype = parts[0].dtype
        counts = np.array([part.nbytes for part in parts], np.int64)
        all_counts = self._meet(_Call.EXCHANGE, dtype.num, counts)

        sent = np.concatenate([_as_bytes(part) for part in parts])
        received_counts = np.ascontiguousarray(all_counts[:, self.index])

        with self._inside_a_call():
            received = self._engine.exchange(sent, counts, received_counts)

        bounds = np.cumsum(received_counts)[:-1]
        by_rank = np.split(received, bounds)
        return [part.view(dtype) for part in by_rank]

    def total(self, values: F32) -> F32:
        """The sum over all ranks."""
        self._meet(_Call.TOTAL, values.nbytes)
        if self.count == 1:
            return values

        with self._inside_a_call():
            return self._engine.total(np.ascontiguousarray(values, np.float32))

    def gather_texts(self, text: str) -> list[str]:
        """What each rank says, by rank."""
        data = np.frombuffer(text.encode(), np.uint8)
        by_rank = self.exchange([data] * self.count)
        return [part.tobytes().decode() for part in by_rank]

    def told(self, text: str) -> str:
        """What rank 0 says; the texts of others are not looked at."""
        said = text if self.is_first else ""
        return self.gather_texts(said)[0]

    def first_of(self, values: NDArray[Any]) -> NDArray[Any]:
        """The array of rank 0, on all ranks; shape and dtype are the same on all."""
        given = np.zeros(0, values.dtype)
        if self.is_first:
            given = np.ascontiguousarray(values).reshape(-1)

        received = self.exchange([given] * self.count)
        return received[0].reshape(values.shape)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.gather(np.zeros(1, np.int64))

    def check_equal(self, by_name: Mapping[str, str]) -> None:
        """RanksDiffer, on all ranks, unless they all say the same."""
        mine_as_text = json.dumps(dict(by_name))
        said = [json.loads(text) for text in self.gather_texts(mine_as_text)]
        for rank, theirs in enumerate(said):
            for name in sorted(said[0].keys() | theirs.keys()):
                mine = said[0].get(name, "")
                other = theirs.get(name, "")
                if mine != other:
                    self._is_over = True
                    raise RanksDiffer(_difference(name, rank, mine, other))

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that this one goes no further. They raise RankFailed."""
        if self._is_over:
            return

        reason = _described(error)
        self._engine.tell_failure(reason)
        if self.is_broken:
            return

        try:
            self._meet(_Call.FAILED, 0, reason=reason)
        except MegalithError as raised:
            logger.debug("the other ranks end too: %s", raised)

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        """Inside, an error of this rank is told to the others before it is raised."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def close(self) -> None:
        """The last call. Ranks that may not know of an error are ended where that is possible."""
        if self.is_broken:
            self._engine.abort()
        else:
            self._engine.close()

    def _meet(
        self,
        call: _Call,
        extent: int,
        counts: NDArray[np.int64] | None = None,
        reason: str = "",
    ) -> NDArray[np.int64]:
        """Compare with the others what comes next; the counts of all ranks."""
        said = np.frombuffer(reason.encode()[:_MAX_REASON], np.uint8)
        header = np.zeros(4 + self.count, np.int64)

        header[:4] = (call, self._num_calls, extent, said.size)
        if counts is not None:
            header[4:] = counts

        self._num_calls += 1
        with self._inside_a_call():
            headers = self._engine.gather(header)
            failed = np.flatnonzero(headers[:, 0] == _Call.FAILED)
            if failed.size:
                reasons = self._engine.exchange(
                    np.concatenate([said] * self.count),
                    np.full(self.count, said.size, np.int64),
                    np.ascontiguousarray(headers[:, 3]),
                )

        if failed.size:
            self._is_over = True
            raise RankFailed(_failures(failed, reasons, headers[:, 3]))

        self._check_same(headers[:, :3])
        return np.ascontiguousarray(headers[:, 4:])

    def _check_same(self, headers: NDArray[np.int64]) -> None:
        for rank, theirs in enumerate(headers):
            if not np.array_equal(theirs, headers[0]):
                self._is_over = True
                first = _call_in_words(headers[0])
                other = _call_in_words(theirs)
                raise RanksDiffer(
                    f"rank {rank} is not where rank 0 is: {other}, and not {first}; all ranks must "
                    "run the same program with the same task and settings"
                )

    @contextmanager
    def _inside_a_call(self) -> Iterator[None]:
        """Whatever goes wrong inside, the ranks are no longer in step."""
        is_whole = False
        try:
            yield
            is_whole = True
        finally:
            if not is_whole:
                self.is_broken = True


def _as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _described(error: BaseException) -> str:
    """As text that can be sent, also if it names a file whose name is no text."""
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    text = f"{type(error).__name__}: {error}{notes}"
    return text.encode(errors="backslashreplace").decode()


def _failures(
    failed: NDArray[np.intp], reasons: NDArray[np.uint8], sizes: NDArray[np.int64]
) -> str:
    said = np.split(reasons, np.cumsum(sizes)[:-1])

    texts = []
    for rank in failed.tolist():
        reason = said[rank].tobytes().decode(errors="replace")
        texts.append(f"rank {rank} failed: {reason}")

    return "; ".join(texts)


def _call_in_words(header: NDArray[np.int64]) -> str:
    call, number, extent = header.tolist()
    return f"call {number}, {_Call(call).name.lower()} of {extent}"


def _difference(name: str, rank: int, first: str, other: str) -> str:
    """What two ranks say, from a little before the place where they differ."""
    length = min(len(first), len(other))
    at = next((place for place in range(length) if first[place] != other[place]), length)
    begin = max(0, at - _SHOWN // 2)
    shown = slice(begin, begin + _SHOWN)

    before = "..." if begin else ""
    return (
        f"rank {rank} differs from rank 0 in {name}: {before}{other[shown]!r}, and on rank 0 "
        f"{before}{first[shown]!r}; start all ranks with the same task and settings"
    )

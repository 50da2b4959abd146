"""Ranks as threads of one process."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from megalith.collective.engine import Engine
from megalith.collective.ranks import Ranks
from megalith.errors import RankSilent


class Meeting:
    """Where the threads put what they give each other."""

    def __init__(self, size, timeout_s=60.0):
        self.size = size
        self.given = [None] * size
        self.barrier = threading.Barrier(size)
        self.timeout_s = timeout_s
        self.num_exchanges = 0  # begun, by any rank

    def exchanged(self, rank, given):
        self.num_exchanges += 1
        self.given[rank] = given
        try:
            self.barrier.wait(self.timeout_s)
            taken = list(self.given)
            self.barrier.wait(self.timeout_s)
        except threading.BrokenBarrierError:
            missing = [each for each in range(self.size) if self.given[each] is None]
            raise RankSilent(f"rank {rank} waits for {missing}") from None
        return taken


class ThreadEngine(Engine):
    name = "threads"

    def __init__(self, meeting, rank):
        self._meeting = meeting
        self.rank = rank
        self.size = meeting.size

    def gather(self, values):
        return np.stack(self._meeting.exchanged(self.rank, values.copy()))

    def exchange(self, sent, sent_counts, received_counts):
        parts = np.split(sent.copy(), np.cumsum(sent_counts)[:-1])
        assert [part.size for part in parts] == sent_counts.tolist()
        taken = [of_rank[self.rank] for of_rank in self._meeting.exchanged(self.rank, parts)]
        assert [part.size for part in taken] == received_counts.tolist()
        return np.concatenate(taken)

    def total(self, values):
        return np.stack(self._meeting.exchanged(self.rank, values.copy())).sum(0, dtype=np.float32)


def on_ranks(size, call, timeout_s=60.0):
    """What `call(ranks)` returns, or the error that it raises, on each of so many ranks."""
    meeting = Meeting(size, timeout_s)

    def run(rank):
        ranks = Ranks(ThreadEngine(meeting, rank))
        try:
            return call(ranks)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def all_of(results):
    """The results, none of which is an error."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results

"""Ranks that `mpirun` has started, by mpi4py."""

import atexit
import sys
import time
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.collective.engine import F32, Bytes, Counts, Engine
from megalith.collective.silence import silent
from megalith.errors import InvalidSetting, RankFailed, RankSilent
from megalith.errors.extras import how_to_install

_BUSY_S = 0.001  # a call is waited for without a pause so long; most take a tenth of that
_PAUSE_S = 0.0005
_ROLL_CALL_S = 3.0  # for the other ranks that wait to say so
_ROLL_CALL = 7  # the tag of that message


class MpiEngine(Engine):
    """The ranks of MPI's world.

    Every call is one that can be waited for with a limit. When the limit has passed, each rank
    that waits tells the others so, and the ranks that say nothing are the ones that are missing.
    """

    name = "mpi"

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._mpi = _library()
        self._timeout_s = timeout_s
        self._clock = clock

        self._comm = self._mpi.COMM_WORLD.Dup()  # messages of the program itself stay apart
        self.rank = self._comm.rank
        self.size = self._comm.size

        self._heard_of: set[int] = set()
        self._earlier_hook = sys.excepthook  # of the program, which is called first
        sys.excepthook = self._end_all_ranks

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        sent = np.ascontiguousarray(values)
        received = np.empty((self.size, *values.shape), values.dtype)
        self._wait(self._comm.Iallgather(_as_bytes(sent), _as_bytes(received)), "a gather")
        return received

    def exchange(self, sent: Bytes, sent_counts: Counts, received_counts: Counts) -> Bytes:
        received = np.empty(int(received_counts.sum()), np.uint8)
        request = self._comm.Ialltoallv(
            [sent, sent_counts.tolist()], [received, received_counts.tolist()]
        )

        self._wait(request, "an exchange")
        return received

    def total(self, values: F32) -> F32:
        received = np.empty_like(values)
        self._wait(self._comm.Iallreduce(values, received), "a sum")
        return received

    def abort(self) -> None:
        """End all ranks at once; mpirun then exits with status 1.

        Not after `close`: all have made their last call by then, and MPI takes none.
        """
        if self._mpi.Is_finalized():
            return

        sys.stdout.flush()
        sys.stderr.flush()
        self._mpi.COMM_WORLD.Abort(1)

    def close(self) -> None:
        """Without it mpirun takes the end of this process for a failure."""
        if not self._mpi.Is_finalized():
            self._mpi.Finalize()

    def _wait(self, request: Any, what: str) -> None:
        started = self._clock()
        while not request.Test():
            waited_s = self._clock() - started
            is_called = self._comm.Iprobe(tag=_ROLL_CALL)
            if is_called or waited_s > self._timeout_s:
                missing = self._call_the_roll()

                atexit.register(self.abort)  # else the end of this process waits for them for good
                raise silent(self.rank, what, waited_s, missing)

            if waited_s > _BUSY_S:
                time.sleep(_PAUSE_S)

    def _call_the_roll(self) -> list[int]:
        """The ranks that do not wait, as this one does."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        here = np.zeros(1, np.int64)
        calls = [self._comm.Isend(here, dest=rank, tag=_ROLL_CALL) for rank in others]
        missing = set(others)

        until = self._clock() + _ROLL_CALL_S
        while missing and self._clock() < until:
            status = self._mpi.Status()
            if self._comm.Iprobe(tag=_ROLL_CALL, status=status):
                self._comm.Recv(here, source=status.source, tag=_ROLL_CALL)
                missing.discard(status.source)
            else:
                time.sleep(_PAUSE_S)

        self._mpi.Request.Testall(calls)
        return sorted(missing)

    def _end_all_ranks(
        self, kind: type[BaseException], error: BaseException, where: TracebackType | None
    ) -> None:
        """For an error that nobody has caught: without this the other ranks would wait for good.

        One that all ranks know of ends each of them by itself.
        """
        print(f"rank {self.rank} of {self.size}:", file=sys.stderr)
        try:
            self._earlier_hook(kind, error, where)
        finally:
            is_known = isinstance(error, RankFailed) and not isinstance(error, RankSilent)
            if not is_known:
                self.abort()


def _library() -> ModuleType:
    try:
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise InvalidSetting(f"--collective=mpi: {how_to_install('mpi', error)}") from error
    except (ImportError, RuntimeError) as error:  # there is no MPI that it was made for
        raise InvalidSetting(
            f"--collective=mpi: mpi4py finds no MPI ({error}); pip install 'megalith[mpi]' brings "
            "Open MPI"
        ) from error

    library: ModuleType = MPI
    return library


def _as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)

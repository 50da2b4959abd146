"""Workers that take each step together, with the mean of their dense gradients.

The model stays on the parameter servers. Each worker pushes the gradients of its own rows, and
worker-0 the mean of all dense ones:

    all go on?   pull   compute   mean of dense gradients   push   all go on?   pull ...

Nobody pulls before the pushes of all are answered. A worker that waits for its input, or is held,
answers the question with "not yet" again and again, so that the others know that it lives.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from megalith.collective.engine import Engine
from megalith.collective.means import mean_gradients
from megalith.collective.ranks import Ranks
from megalith.errors import RanksDiffer
from megalith.runtime.counting import counted
from megalith.schema import VariableConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_S = 0.05  # between two looks at the gate while another worker is waited for
_NOT_YET_S = 0.05  # between two answers of a worker that has no step yet

# What a worker answers: it was told to stop, it is at its end, it has no step yet, it has one
_STOPS = 0
_ENDS = 1
_WAITS = 2
_GOES_ON = 3


class StepGivenUp(Exception):
    """A worker has to end before the step is pushed, so no worker pushes it."""


class WorkerStopped(Exception):
    """A worker was told to stop in the middle of its share, so no worker goes on."""


class InStep:
    """One of several workers that take each step together.

    A call waits for the other workers on a thread of its own, while the training thread waits at
    the gate: a worker that waits for others has nothing on its way to a server, so it counts as
    blocked whenever training is held, and a hold never waits for two workers that wait for each
    other. For the training thread.
    """

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        # All calls are made by the thread that has made the engine, as MPI wants it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ranks")
        self._ranks = self._thread.submit(lambda: Ranks(open_engine())).result()
        self._may_step: Callable[[], bool] = lambda: True
        self._is_stopping: Callable[[], bool] = lambda: False
        self.is_leaving = False  # the gate has said that this worker takes no more steps
        self._is_over = False  # a worker has answered that it is at its end
        self._has_come = threading.Event()  # this worker waits no longer
        self._not_yet: Future[None] | None = None  # the answers while it waited last
        self.index = self._ranks.index
        self.count = self._ranks.count

    def begin(
        self,
        num_workers: int,
        model: Mapping[str, str],
        may_step: Callable[[], bool],
        is_stopping: Callable[[], bool],
    ) -> None:
        """RanksDiffer unless all workers of the job are ranks, and train the same model.

        `may_step` is the gate, and `is_stopping` whether this worker was told to stop.
        """
        self._may_step = may_step
        self._is_stopping = is_stopping
        if num_workers != self.count:
            workers = counted(num_workers, "worker")
            started = counted(self.count, "rank was", "ranks were")
            wanted = counted(num_workers, "rank")
            raise RanksDiffer(
                f"the job has {workers}, and {started} started: give the "
                f"controller --num-workers={self.count}, or start {wanted} by one "
                "launcher; one of them alone cannot be replaced"
            )

        self._thread.submit(self._ranks.check_equal, model).result()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, this worker waits for its input or at the gate, for as long as it takes.

        The others are told so: they wait too, and none of them takes this one for dead.
        """
        self._start_waiting()
        try:
            yield
        finally:
            self.stop_waiting()

    def stop_waiting(self) -> None:
        """The next call of this worker is one that the others wait for."""
        self._has_come.set()

    @property
    def is_over(self) -> bool:
        """Whether this worker heard, while it was waiting, that there is no further step.

        `all_go_on` then returns False, or raises why.
        """
        has_failed = self._not_yet is not None and _has_raised(self._not_yet)
        return self._is_over or has_failed

    def all_go_on(self, has_step: bool) -> bool:
        """Whether every worker has another step to take; the same on all of them.

        A worker that has to end only after it has answered ends the step in `share`.
        """
        return self._beside_the_gate(lambda: self._agreed(has_step))

    def share(
        self, gradients: Mapping[str, NDArray[Any]], variables: tuple[VariableConfig, ...]
    ) -> dict[str, Any] | None:
        """The mean gradients for worker-0 to push, and nothing for the others.

        None if a worker has to end: then nobody takes this step. Until `stop_waiting` the others
        are told that this one is still at it: its push may have to wait for a server.
        """
        shapes = {variable.name: variable.initial.shape for variable in variables}

        # One call: a worker that is held between two would keep the others waiting in the second.
        def shared() -> dict[str, Any] | None:
            means = mean_gradients(self._ranks, gradients, shapes)
            answers = self._answers(_ENDS if self.is_leaving else _GOES_ON)
            return dict(means) if (answers == _GOES_ON).all() else None

        means = self._beside_the_gate(shared)
        if means is None:
            return None

        self._start_waiting()
        return means if self.index == 0 else {}

    def fail(self, error: BaseException) -> None:
        """Tell the other workers why this one ends."""
        self._thread.submit(self._ranks.fail, error).result()

    def close(self) -> None:
        """After the last call of all."""
        self._thread.submit(self._ranks.close).result()
        self._thread.shutdown(wait=False)

    def _start_waiting(self) -> None:
        self._has_come = threading.Event()
        answer = partial(self._answer_not_yet, self._not_yet, self._has_come)
        self._not_yet = self._thread.submit(answer)

    def _beside_the_gate(self, call: Callable[[], T]) -> T:
        """What the call returns. Training may be held while it waits, and not when it returns.

        A worker that may not step any more still answers the call that others wait in.
        """
        answer: Future[T] = self._thread.submit(call)
        while not self.is_leaving and not answer.done():
            if self._may_step():
                wait([answer], _LOOK_S)
            else:
                logger.info("this worker ends its share, and the others with it")
                self.is_leaving = True

        return answer.result()

    # ------------------------------------------------------------------ on the thread of the ranks

    def _agreed(self, has_step: bool) -> bool:
        if self._not_yet is not None:
            self._not_yet.result()  # after an error no further call is made

        while not self._is_over:
            goes_on = has_step and not self.is_leaving
            answers = self._answers(_GOES_ON if goes_on else _ENDS)
            if (answers == _GOES_ON).all():
                return True

            self._is_over = bool((answers == _ENDS).any())

        return False

    def _answer_not_yet(self, before: Future[None] | None, has_come: threading.Event) -> None:
        if before is not None:
            before.result()

        while not self._is_over and not has_come.wait(_NOT_YET_S):
            answers = self._answers(_WAITS)
            self._is_over = bool((answers == _ENDS).any())

    def _answers(self, mine: int) -> NDArray[np.int64]:
        """Those of all workers, by rank."""
        said = _STOPS if self._is_stopping() else mine
        answers = self._ranks.gather(np.array([said], np.int64)).reshape(-1)
        stopped = np.flatnonzero(answers == _STOPS).tolist()
        if stopped:
            names = ", ".join(f"worker-{index}" for index in stopped)
            raise WorkerStopped(
                f"{names} was told to stop, and workers with --dense-sync go on together only: "
                "start all of them again"
            )

        return answers


def _has_raised(call: Future[None]) -> bool:
    return call.done() and call.exception() is not None

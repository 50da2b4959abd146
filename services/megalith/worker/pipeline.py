"""Steps that overlap: the batch after next is drawn, the next one's rows are pulled and the last one's gradients are
pushed while this one is computed. How far that goes is bounded, and 0 is one call after the other.
"""  # noqa: D205  # the first sentence is the contract

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike, NDArray

from megalith.client import Begun, Cluster, Ids, Pulled
from megalith.wire.errors import InvalidRequest, MegalithError, OutcomeLost, OutcomeUnknown
from megalith.worker.failover import RETRIABLE
from megalith.worker.task import Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A batch and its ids by table, which are searched once for its pull and its push."""

    batch: Any
    ids: dict[str, Ids]


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step whose push was answered. `added` is empty if a part of the push was lost: nobody knows about that part."""

    num_examples: int
    loss: float
    added: dict[str, NDArray[Any]]


@dataclass(slots=True)
class _Push:
    """A step whose push is on its way."""

    answered: Begun[dict[str, NDArray[Any]]]
    num_examples: int
    loss: float
    is_open: bool = False  # it was asked about, and whether it is applied is not known yet


class Pipeline:
    """The steps of one worker, from `position` on. Used by one thread; `numbers` gives the batch of a position.

    With a staleness of S, a pull may miss the pushes of this worker's last S steps and no more: 1 pulls a step ahead,
    with 2 a push overlaps the next step too, and from 3 on pulls are S - 1 steps ahead. Calls are sent and answered in
    the thread of the steps; only batches are drawn by another one.
    """

    def __init__(
        self,
        task: Task[Any],
        cluster: Cluster,
        numbers: Callable[[int], int | None],
        staleness: int,
        prefetch_batches: int,
        on_step: Callable[[Stepped], None],
    ) -> None:
        self._task, self._cluster, self._staleness, self._on_step = (
            task,
            cluster,
            staleness,
            on_step,
        )
        self._ahead = min(
            staleness, max(1, staleness - 1)
        )  # steps; from 2 on one of them is for the push behind
        self._names = [variable.name for variable in task.variables]
        self._input = _Input(task, numbers, prefetch_batches)
        self.position = 0  # the next step that counts: everything before it was answered
        self._next = 0  # the next step to compute
        self._pulls: dict[int, tuple[Drawn, Begun[Pulled]]] = {}
        self._push: _Push | None = None

    def begin(self, position: int) -> None:
        """Go on from `position`; nothing is under way."""
        self.position = self._next = position

    @property
    def is_begun_to(self) -> int:
        """The next step to compute; those between `position` and it wait for their answers."""
        return self._next

    def step(self, push: Callable[[Pulled, Drawn], tuple[float, dict[str, Any]]]) -> None:
        """Compute one step and send its push. `push` gives its loss and the keywords of Cluster.push.

        An error of a step under way is raised here; then the steps that it left out are the next ones. An error of the
        last push that no retry mends goes before a passing one: servers may have applied a part of that push. A push
        whose outcome is not known leaves out nothing: it is asked about again, and no other push is sent before.
        """
        try:
            if self._staleness < 2 or self.has_open_push:
                self._settle()
            drawn, pulled = self._pulled(self._next)
            for ahead in range(1, self._ahead + 1):
                self._pull_ahead(self._next + ahead)
            loss, content = push(pulled, drawn)
            self._settle()  # the next push waits for this one in any case, and must not be sent if it failed
            answered = self._cluster.begin_push(**content)
            self._push = _Push(answered, self._task.num_examples(drawn.batch), loss)
            self._next += 1
            if not self._staleness:
                self._settle()
        except RETRIABLE as error:
            fatal = self._abandon()
            if fatal is not None:
                raise fatal from error
            raise
        except BaseException:
            self._abandon()
            raise

    def drain(self) -> None:
        """Wait until the last push is answered, and forget what was pulled ahead: it may be old when training goes on.

        A push that was not applied for a passing reason leaves its step to be taken again. One whose outcome is not
        known in time stays under way (`has_open_push`); drain again.
        """
        try:
            self._settle()
        except RETRIABLE as error:
            what = (
                "is still unknown" if self.has_open_push else "is that its step will be taken again"
            )
            logger.warning("the outcome of a push %s: %s", what, error)
        finally:
            self._abandon()

    @property
    def has_open_push(self) -> bool:
        """Whether a push was sent of which it is not known whether it is applied, though it was asked about."""
        return self._push is not None and self._push.is_open

    def close(self) -> None:
        self._input.close()

    def _settle(self) -> None:
        """Wait until no push is on its way; one that is answered counts, and so does one of which a part is lost."""
        if self._push is None:
            return
        push = self._push
        try:
            added = push.answered.result()
        except OutcomeLost as error:
            # To take the step again would apply it twice where it is applied. The client counts what is not known.
            logger.warning("a step counts although a part of its push is lost: %s", error)
            added = {}
        except OutcomeUnknown:
            push.is_open = True
            raise
        self._push = None
        self.position += 1
        self._on_step(Stepped(push.num_examples, push.loss, added))

    def _pulled(self, position: int) -> tuple[Drawn, Pulled]:
        if position in self._pulls:
            drawn, begun = self._pulls.pop(position)
            return drawn, begun.result()
        drawn = self._input.batch(position)
        return drawn, self._cluster.pull(drawn.ids, self._names)

    def _pull_ahead(self, position: int) -> None:
        if position not in self._pulls and self._input.has(position):
            drawn = self._input.batch(position)
            self._pulls[position] = drawn, self._cluster.begin_pull(drawn.ids, self._names)

    def _abandon(self) -> MegalithError | None:
        """Let the push under way end, count it if it was answered, and go back to the first step that was not.

        An open push stays under way: its step is neither taken again nor left out. Returns the error of the push if no
        retry mends it: its step must not be taken again, since one server may have applied it and another refused it.
        """
        fatal: MegalithError | None = None
        try:
            if not self.has_open_push:
                self._settle()
        except RETRIABLE as error:
            logger.debug("the push under way failed too: %s", error)
        except MegalithError as error:
            fatal = error
        if not self.has_open_push:
            self._push = None
        for _, begun in self._pulls.values():
            begun.abandon(InvalidRequest("the step was given up"))
        self._pulls.clear()
        self._next = self.position + self.has_open_push
        return fatal


class _Input:
    """Batches by position, the next ones drawn by a thread."""

    def __init__(self, task: Task[Any], numbers: Callable[[int], int | None], ahead: int) -> None:
        self._task, self._numbers, self._ahead = task, numbers, ahead
        self._drawn: dict[int, Future[Drawn]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="input") if ahead else None

    def has(self, position: int) -> bool:
        return self._numbers(position) is not None

    def batch(self, position: int) -> Drawn:
        """The batch of a position, which exists; those after it are begun."""
        if self._thread is None:
            return self._draw(self._number(position))
        wanted = [after for after in range(position, position + self._ahead + 1) if self.has(after)]
        for stale in [at for at in self._drawn if at not in wanted]:
            self._drawn.pop(stale).cancel()
        for at in wanted:
            if at not in self._drawn:
                self._drawn[at] = self._thread.submit(self._draw, self._number(at))
        return self._drawn[position].result()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _draw(self, number: int) -> Drawn:
        batch = self._task.batch(number)
        return Drawn(
            batch, {table: _ids(table, values) for table, values in self._task.ids(batch).items()}
        )

    def _number(self, position: int) -> int:
        number = self._numbers(position)
        if number is None:
            raise InvalidRequest(f"position {position} is after the end of the share")
        return number


def _ids(table: str, values: ArrayLike) -> Ids:
    try:
        return Ids(values)
    except InvalidRequest as error:
        raise InvalidRequest(f"table {table}: {error}") from error


def share(total: int | None, index: int, num_workers: int) -> Callable[[int], int | None]:
    """The batch number of each position of a worker's share; None after its end."""
    return lambda position: (
        index + position * num_workers if total is None or position < total else None
    )

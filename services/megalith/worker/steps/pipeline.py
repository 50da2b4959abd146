"""Steps that overlap.

While a step is computed, the batch after the next one is drawn, the rows of the next one are pulled
and the gradients of the last one are pushed. How far that goes is bounded: with a staleness of 0
one call follows the other.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from megalith.client import Cluster, PendingCall, Pulled
from megalith.errors import InvalidRequest, MegalithError, OutcomeLost, OutcomeUnknown
from megalith.worker.batches import Batches, TrainingBatch
from megalith.worker.steps.failover import RETRIABLE
from megalith.worker.task import Task

logger = logging.getLogger(__name__)

# A pull ahead needs the next batch. Input that is slower than this is what training waits for, and
# the push of the batch in hand does not wait for it too.
_INPUT_WAIT_S = 0.2


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a step has found out. `content` are the keywords of the push that teaches it.

    `loss` is None if the batch is left out. `req_time_s` is the Unix time of the batch's data; 0 if
    it has none. `missing_values` are those that its examples lack.
    """

    loss: float | None
    metrics: Mapping[str, float]
    content: dict[str, Any]
    req_time_s: int = 0
    missing_values: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step whose push was answered. The input goes on at `cursor` after it.

    `raised` has the variables that the push has raised. It is empty if a part of the push was lost:
    nobody knows about that part.
    """

    num_examples: int
    lesson: Lesson
    raised: dict[str, NDArray[Any]]
    cursor: bytes


@dataclass(slots=True)
class _PendingPush:
    """A step whose push is on its way."""

    answer: PendingCall[dict[str, NDArray[Any]]]
    num_examples: int
    lesson: Lesson
    cursor: bytes
    is_open: bool = False  # it was asked about, and whether it is applied is not known yet


class Pipeline:
    """The steps of one worker, from `position` on. Used by one thread.

    With a staleness of S, a pull may miss the pushes of this worker's last S steps and no more:

    - 1 pulls a step ahead;
    - with 2 a push overlaps the next step too;
    - from 3 on pulls are S - 1 steps ahead.

    Calls are sent and answered in the thread of the steps; only batches are drawn by another one.
    """

    def __init__(
        self,
        task: Task[Any],
        cluster: Cluster,
        batches: Batches,
        staleness: int,
        on_step: Callable[[StepResult], None],
    ) -> None:
        self._task = task
        self._cluster = cluster
        self._staleness = staleness
        self._on_step = on_step
        # Steps that are pulled ahead; from a staleness of 2 on one of them is for the push behind.
        self._ahead = min(staleness, max(1, staleness - 1))
        self._names = [variable.name for variable in task.variables]
        self._batches = batches
        self.position = 0  # the next step that counts: everything before it was answered
        self._next = 0  # the next step to compute
        self._pulls: dict[int, tuple[TrainingBatch, PendingCall[Pulled]]] = {}
        self._push: _PendingPush | None = None

    def begin(self, position: int) -> None:
        """Go on from `position`; nothing is under way."""
        self.position = position
        self._next = position

    @property
    def next_position(self) -> int:
        """The next step to compute; those between `position` and it wait for their answers."""
        return self._next

    def step(self, learn: Callable[[Pulled, TrainingBatch], Lesson]) -> None:
        """Compute one step by `learn` and send its push.

        An error of a step under way is raised here; then the steps that it left out are the next
        ones. An error of the last push that no retry mends goes before a passing one: servers may
        have applied a part of that push. A push whose outcome is not known leaves out nothing: it
        is asked about again, and no other push is sent before. With a staleness of 0 the call that
        hears its outcome takes no other step: workers in step agree on each one.
        """
        try:
            self._step(learn)
        except RETRIABLE as error:
            fatal = self._abandon()
            if fatal is not None:
                raise fatal from error

            raise
        except BaseException:
            self._abandon()
            raise

    def _step(self, learn: Callable[[Pulled, TrainingBatch], Lesson]) -> None:
        was_open = self.has_open_push
        if self._staleness < 2 or was_open:
            self._wait_for_push()
        if was_open and not self._staleness:
            return  # that was the rest of this step

        batch, pulled = self._pulled(self._next)
        for ahead in range(1, self._ahead + 1):
            self._pull_ahead(self._next + ahead)

        lesson = learn(pulled, batch)

        # The next push waits for this one in any case, and must not be sent if this one failed.
        self._wait_for_push()
        answer = self._cluster.begin_push(**lesson.content)
        num_examples = self._task.num_examples(batch.batch)
        self._push = _PendingPush(answer, num_examples, lesson, batch.cursor)
        self._next += 1
        if not self._staleness:
            self._wait_for_push()

    def drain(self) -> None:
        """Wait until the last push is answered, and forget what was pulled ahead.

        What was pulled may be old when training goes on. A push that was not applied for a passing
        reason leaves its step to be taken again. One whose outcome is not known in time stays under
        way (`has_open_push`); drain again.
        """
        try:
            self._wait_for_push()
        except RETRIABLE as error:
            taken_again = "is that its step will be taken again"
            outcome = "is still unknown" if self.has_open_push else taken_again
            logger.warning("the outcome of a push %s: %s", outcome, error)
        finally:
            self._abandon()

    @property
    def has_open_push(self) -> bool:
        """Whether a push was asked about, and it is still not known whether it is applied."""
        return self._push is not None and self._push.is_open

    def _wait_for_push(self) -> None:
        """Wait until no push is on its way.

        A step whose push is answered counts, and so does one of whose push a part is lost.
        """
        if self._push is None:
            return

        push = self._push
        try:
            raised = push.answer.result()
        except OutcomeLost as error:
            # To take the step again would apply it twice where it is applied. The client counts
            # what is not known.
            logger.warning("a step counts although a part of its push is lost: %s", error)
            raised = {}
        except OutcomeUnknown:
            push.is_open = True
            raise

        self._push = None
        self.position += 1
        self._batches.forget_before(self.position)
        self._on_step(StepResult(push.num_examples, push.lesson, raised, push.cursor))

    def _pulled(self, position: int) -> tuple[TrainingBatch, Pulled]:
        if position in self._pulls:
            batch, pull = self._pulls.pop(position)
            return batch, pull.result()

        batch = self._batches.get(position)
        pulled = self._cluster.pull(batch.ids, self._names)
        return batch, pulled

    def _pull_ahead(self, position: int) -> None:
        if position not in self._pulls and self._batches.is_drawn(position, _INPUT_WAIT_S):
            batch = self._batches.get(position)
            pull = self._cluster.begin_pull(batch.ids, self._names)
            self._pulls[position] = (batch, pull)

    def _abandon(self) -> MegalithError | None:
        """Go back to the first step that was not answered.

        The push under way may end first, and counts if it was answered. An open push stays under
        way: its step is neither taken again nor left out. Returns the error of the push if no retry
        mends it: its step must not be taken again, since one server may have applied it and another
        refused it.
        """
        fatal: MegalithError | None = None
        try:
            if not self.has_open_push:
                self._wait_for_push()
        except RETRIABLE as error:
            logger.debug("the push under way failed too: %s", error)
        except MegalithError as error:
            fatal = error

        if not self.has_open_push:
            self._push = None

        for _, pull in self._pulls.values():
            pull.abandon(InvalidRequest("the step was given up"))

        self._pulls.clear()
        self._next = self.position + self.has_open_push
        return fatal

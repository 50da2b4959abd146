"""What was trained and is lost: counted, and said in words."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megalith.runtime.counting import counted
from megalith.wire.reports import PsReport, RestoreReport

logger = logging.getLogger(__name__)

_KEPT = 100  # sentences; the count of rows goes on


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss. `at_s` is Unix time; `rows` is 0 where only updates or batches are lost."""

    at_s: float
    rows: int
    what: str


@dataclass(frozen=True, slots=True)
class Held:
    """What a ps, or a run, held when it was last heard.

    `step` is that of the job then, `pushes` are those that are not saved. `when` says when that
    was, for people.
    """

    rows: int
    step: int
    pushes: int
    tables: int = 0
    variables: int = 0
    when: str = ""


class Losses:
    """Everything that this run has lost. Not thread-safe: the coordinator's lock guards it.

    A ps that is replaced is compared with its replacement once that one is ready.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        # By index: what went down with the last ps that was ready there
        self._gone: dict[int, Held] = {}
        self._run_gone: Held | None = None
        self._given_up: set[tuple[int, str]] = set()  # (index, incarnation) of workers
        self._said: deque[Loss] = deque(maxlen=_KEPT)
        self._saved_at_s: dict[str, float] = {}

        self.rows = 0
        self.pushes_unknown = 0

    @property
    def said(self) -> tuple[Loss, ...]:
        return tuple(self._said)

    def saved(self, path: str, at_s: float) -> None:
        """A checkpoint was made at that time."""
        self._saved_at_s = {path: at_s}  # a ps restores the newest one

    def ps_gone(self, index: int, load: PsReport, step: int, silent_s: float = 0.0) -> None:
        """Another process takes the seat of a ps that last reported `load`, so many seconds ago.

        Its pushes are those not saved.
        """
        if load.is_ready:
            # A journal does not say when the report that it has kept was made.
            when = (
                f", {silent_s:.0f} s before it was replaced"
                if load.restored is not None
                else ", before it was lost"
            )

            pushes = max(0, load.pushes)  # a save may know of more than the last report
            self._gone[index] = Held(load.rows, step, pushes, load.tables, load.variables, when)

    def ps_ready(self, index: int, restored: RestoreReport, counts_steps: bool) -> None:
        """The replacement holds what it restored.

        `counts_steps` = workers train, so that steps tell of updates.
        """
        held = self._gone.pop(index, None)
        if held is None:
            return

        # Tables that are left out were not on the server before it either.
        rows = max(0, held.rows - restored.rows)
        tables = max(0, held.tables - restored.tables)
        variables = max(0, held.variables - restored.variables)
        lost = [_counted(tables, "table"), _counted(variables, "variable")]
        if rows:
            expired = _of_which(restored.expired)
            lost.insert(0, f"{counted(rows, 'row')}{expired}")

        if _are_updates_lost(held, restored.step, counts_steps):
            lost.append("all updates since" if restored.path else "all updates")

        lost = [what for what in lost if what]
        if not lost:
            return

        start = (
            f"from {self._checkpoint(restored)}"
            if restored.path
            else "empty, there is no checkpoint"
        )

        at_step = f" at step {held.step}" if counts_steps else ""
        self.add(
            rows,
            f"ps-{index} was replaced and starts {start}. Lost: {', '.join(lost)}. "
            f"Its last report{held.when}, was of {counted(held.rows, 'row')}{at_step}; "
            "what it got after that is lost too, and not counted",
        )

    def run_gone(self, held: Held) -> None:
        """Nobody of a run that held this is left.

        Its servers are not compared one by one, because there are others now.
        """
        self._run_gone = held

    def run_ready(self, restored: Sequence[RestoreReport], counts_steps: bool) -> None:
        """All servers of the run after it hold what they restored, which is one checkpoint."""
        held = self._run_gone
        if held is None or not restored:
            return

        self._run_gone = None
        first = restored[0]
        kept = sum(one.rows for one in restored)
        left_out = sum(one.left_out for one in restored)
        rows = max(0, held.rows - kept - left_out)

        if not rows and not _are_updates_lost(held, first.step, counts_steps):
            return

        expired = _of_which(sum(one.expired for one in restored))
        since = "of that run: there is no checkpoint"
        if first.path:
            since = f"since {self._checkpoint(first)}"

        lost = counted(rows, "row is", "rows are")
        self.add(
            rows,
            f"the last run ended at step {held.step} with {counted(held.rows, 'row')}, "
            f"this one has {kept:,} of them: {lost} lost{expired}, "
            f"and so are the updates {since}",
        )

    def _checkpoint(self, restored: RestoreReport) -> str:
        increments = ""
        if restored.increments:
            counts = counted(restored.increments, "increment")
            increments = f" with {counts}"

        age = ""
        saved_at_s = self._saved_at_s.get(restored.path)
        if saved_at_s is not None:
            age_s = self._clock() - saved_at_s
            age = f", saved {age_s:.0f} s ago"

        return f"checkpoint {restored.path}{increments} (step {restored.step}{age})"

    def add(self, rows: int, what: str) -> None:
        self.rows += rows
        self._said.append(Loss(self._clock(), rows, what))
        logger.error("lost: %s", what)

    def share_given_up(self, index: int, incarnation: str, what: str) -> None:
        """A worker was lost for so long that nobody trains the rest of its share; said once."""
        if (index, incarnation) not in self._given_up:
            self._given_up.add((index, incarnation))
            self.add(0, f"{what}; start it again to train the rest")

    def worker_reports(self, index: int, before: int, now: int) -> None:
        """A worker has counted `now` parts of pushes that may or may not be applied.

        It had counted `before`.
        """
        if now <= before:
            return

        self.pushes_unknown += now - before
        self.add(
            0,
            f"worker-{index}: {now - before} of its pushes may or may not be applied, each at one "
            "ps that was replaced or failed before it answered; they are not sent again",
        )

    def recall(self, rows: int, said: tuple[Loss, ...], pushes_unknown: int = 0) -> None:
        """Add what an earlier controller of this run has counted."""
        self.rows += rows
        self.pushes_unknown += pushes_unknown
        self._said = deque([*said, *self._said], maxlen=_KEPT)

    def added_to(self, rows: int, said: tuple[Loss, ...], pushes_unknown: int) -> "Losses":
        """What it would be after `recall`; this one stays as it is."""
        both = Losses(self._clock)
        both.recall(self.rows, self.said, self.pushes_unknown)
        both.recall(rows, said, pushes_unknown)
        return both

    def pending(self, index: int) -> Held | None:
        """What went down with ps `index` and is not yet compared with its replacement."""
        return self._gone.get(index)

    @property
    def pending_run(self) -> Held | None:
        """What a run held that did not go on, until it is compared with the present one."""
        return self._run_gone

    def recall_pending(self, index: int, held: Held) -> None:
        """Take up what an earlier controller had yet to compare."""
        self._gone[index] = held


def _are_updates_lost(held: Held, restored_step: int, counts_steps: bool) -> bool:
    return held.step > restored_step if counts_steps else held.pushes > 0


def _of_which(expired: int) -> str:
    """Nobody knows whether the lost server still held rows that have expired meanwhile."""
    return f" (up to {expired:,} of them had expired)" if expired else ""


def _counted(number: int, what: str) -> str:
    """Such as "1 table" and "2 tables"; empty for none."""
    return counted(number, what) if number else ""

"""Keeping the processes of a local cluster alive.

`up` and `train` report to the AppMaster and do what it says.
"""

import time

from rich.console import Console

from megalith.cli.cluster import suggested
from megalith.cli.cluster.local import LocalCluster
from megalith.cli.cluster.local_process import LocalProcess, ProcessFailed, how_ended
from megalith.cli.cluster.waiting import failure_in
from megalith.cli.screen.output import print_line
from megalith.control import AppMaster, ClusterStatus, SupervisedProcess, Verdict
from megalith.errors import MegalithError

_LOOK_S = 0.5
_CALL_S = 1.0
_PATIENCE_S = 15.0  # for the AppMaster's word about a process that died; it may be starting itself
_CONTROLLER_S = 30.0  # for a controller that was started again to answer
_GRACE_S = 20.0  # for processes to end after the job has, when its end named no time


class Supervisor:
    """The hands of the AppMaster: it decides which processes are started again, this starts them.

    The AppMaster itself is started again here, up to `max_restarts` times. Not for use from several
    threads.
    """

    def __init__(
        self, cluster: LocalCluster, model_dir: str, max_restarts: int, console: Console
    ) -> None:
        self._cluster = cluster
        self._model_dir = model_dir
        self._max_restarts = max_restarts
        self._console = console
        self._appmaster = AppMaster(None, str(cluster.model_dir), _CALL_S)

        self._next_look = 0.0
        self._died_at: dict[str, float] = {}  # deaths without the AppMaster's word, and since when
        self._told: set[tuple[str, int]] = set()  # (process, start) whose end needs no more words
        self._has_answered = False

        self._over: Verdict | None = None  # the AppMaster's last word: it leaves soon after it
        self._end_by: float | None = None
        self._controller_by = 0.0
        self._failure: ProcessFailed | None = None
        self._is_controller_silent = False

    def close(self) -> None:
        self._appmaster.close()

    @property
    def is_controller_expected(self) -> bool:
        """Whether a controller that does not answer may be back soon.

        So it is when it was started again, or may still be.
        """
        is_starting = time.monotonic() < self._controller_by
        return is_starting or "controller" in self._died_at

    def look(self, *, is_over: bool = False) -> None:
        """See to the processes, at most twice a second.

        ProcessFailed when one has ended without which the job cannot go on. Once the job `is_over`,
        processes may end as they like.
        """
        now = time.monotonic()
        if now < self._next_look:
            return

        self._next_look = now + _LOOK_S

        dead = [process for process in self._cluster.processes if process.poll() is not None]
        verdict = self._ask(dead)
        if verdict is not None:
            for name in verdict.start:
                self._start_again(name)

            if verdict.is_over:
                self._over = verdict

        if self._over is not None:
            self._see_to_the_end(self._over, now)
        elif not is_over:
            self._see_to_the_appmaster()
            for process in dead:
                if process in self._cluster.processes:  # not started again
                    self._see_to(process, verdict, now)

    def _ask(self, dead: list[LocalProcess]) -> Verdict | None:
        """The AppMaster's word on what is dead now; None while it does not answer."""
        states = []
        for process in self._cluster.processes:
            # One that has died since `dead` was made is told next time.
            is_running = process not in dead
            status = 0 if is_running else process.poll() or 0
            state = SupervisedProcess(process.name, process.pid, process.starts, is_running, status)
            states.append(state)

        try:
            verdict = self._appmaster.supervise(states)
        except MegalithError:
            return None

        self._has_answered = True
        return verdict

    def _start_again(self, name: str) -> None:
        process = self._cluster.start_again(name)
        if name == "controller":
            self._controller_by = time.monotonic() + _CONTROLLER_S

        self._died_at.pop(name, None)
        how = how_ended(process.last_status)
        self._warn(f"{name} {how}; started again as process {process.pid}")

    def _see_to_the_appmaster(self) -> None:
        for process in self._cluster.processes:
            has_failed = process.name == "appmaster" and process.poll()
            if has_failed and process.starts <= self._max_restarts:
                self._start_again(process.name)
                return

    def _see_to(self, process: LocalProcess, verdict: Verdict | None, now: float) -> None:
        start = (process.name, process.starts)
        if start in self._told:
            return

        status = process.poll() or 0
        if status != 0 and verdict is None and self._is_word_expected():
            died_at = self._died_at.setdefault(process.name, now)
            if now - died_at < _PATIENCE_S:
                return

        self._died_at.pop(process.name, None)
        self._told.add(start)

        is_replica = process.planned.service == "replica"
        is_controller = process.name == "controller"
        is_stopped = process.is_stopped_by_signal and not is_controller

        if is_replica or is_stopped:  # the job goes on without it
            how = how_ended(status)
            again = suggested.ctl(self._model_dir, "app", "restart", process.name)
            self._warn(f"{process.name} {how}; start it again with: {again}")
        elif status != 0:
            self._fail(process, status)

    def _fail(self, process: LocalProcess, status: int) -> None:
        """The job cannot go on without this process.

        If the model is still there, the controller saves it first.
        """
        failure = process.failure()
        if process.planned.service not in ("worker", "appmaster"):
            raise failure  # what a ps held went down with it, and without a controller nobody saves
        if self._failure is not None:
            return  # the job ends already

        why = failure_in(process.logged()) or f"exited with {status}"
        try:
            self._cluster.controller.end_job(False, f"{process.name} failed: {why}")
        except MegalithError:
            raise failure from None

        self._failure = failure

    def raise_failure(self, status: ClusterStatus) -> None:
        """Once the job has its outcome: ProcessFailed if a process that failed is why."""
        if self._failure is not None:
            raise ProcessFailed(
                f"{self._failure}\nthe job {status.outcome}: {status.reason}"
            ) from self._failure

    def _is_word_expected(self) -> bool:
        is_needed = self._has_answered or self._max_restarts > 0
        for process in self._cluster.processes:
            if process.name == "appmaster" and process.poll() is None:
                return is_needed

        return False

    def say_silent(self, error: MegalithError) -> None:
        """The controller runs, or will, and does not answer; said once for each time."""
        if not self._is_controller_silent:
            self._is_controller_silent = True
            self._warn(f"the controller does not answer, it is asked again: {error}")

    def say_heard(self) -> None:
        """The controller answers."""
        if self._is_controller_silent:
            self._is_controller_silent = False
            self._warn("the controller answers again")

    def _see_to_the_end(self, verdict: Verdict, now: float) -> None:
        if self._end_by is None:
            self._end_by = now + (verdict.grace_s or _GRACE_S)

        if now > self._end_by:
            how = "succeeded" if verdict.succeeded else "was killed"
            raise ProcessFailed(
                f"the job {how} ({verdict.reason}), but its processes did not end in time"
            )

    def _warn(self, line: str) -> None:
        print_line(self._console, line, "yellow")

"""What the terminal of `up` and `train` says while a job runs.

It says what was restored, who holds training, what fails and what is lost.
"""

import shlex
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console

from megalith.checkpoint.starting import override
from megalith.checkpoint.storage.location import is_url, locate, name_of
from megalith.cli.cluster import suggested
from megalith.cli.screen.output import print_line, restored_line
from megalith.cli.screen.words import held_by, hook_failures, increments_line, journal_line
from megalith.control import BarrierStatus, ClusterStatus, LossReport, RestoreReport


class News:
    """Compares each status with what was said before, and says what is new.

    Not for several threads. `on_status` is called with each status first.
    """

    def __init__(
        self,
        console: Console,
        model_dir: str,
        restore_ckpt: str = "",
        checkpoint_dir: str = "",
        on_status: Callable[[ClusterStatus], None] = lambda status: None,
    ) -> None:
        self._console = console
        self._model_dir = model_dir
        self._on_status = on_status
        self._checkpoint_dir = checkpoint_dir or model_dir
        self._restore_ckpt = restore_ckpt

        self._last: ClusterStatus | None = None
        self._has_formed = False

        self._restored: dict[int, RestoreReport] = {}  # by ps: what was said of it
        self._losses: set[LossReport] = set()

        self._save_error = ""
        self._ending = ""
        self._increments_fail_since_s = 0.0
        self._journal_error = ""
        self._input = ""
        self._holds: list[str] = []  # what was said of those who hold training
        self._hook_failures: set[str] = set()
        self._ends: list[str] = []  # what was said of files that end training

    def tell(self, status: ClusterStatus) -> None:
        """Print a line for each thing that happened since the last status."""
        self._on_status(status)
        self._last = status
        if status.phase != "forming":
            self._has_formed = True
            self._tell_restored(status)

        if status.input and status.input != self._input:
            self._say(f"the input {status.input}")
            self._input = status.input

        self._tell_losses(status)
        self._tell_hooks(status)
        self._tell_holds(status.barrier)
        self._tell_saves(status)
        self._tell_increments(status)
        self._tell_journal(status.journal_error)

    def farewell(self) -> str:
        """What becomes of the model if the job stops now.

        Empty when nothing is known or there was no model yet.
        """
        status = self._last
        if status is None or status.outcome:  # an outcome says it itself
            return ""
        if status.unsaved:
            return f"not saved: {status.unsaved}"
        if status.last_checkpoint:
            # "saved" would be wrong of a checkpoint that the job failed to start from.
            what = "saved:" if self._has_formed else "the newest checkpoint is"
            return f"{what} {status.last_checkpoint}"

        return "not saved: there is no checkpoint" if status.epoch else ""

    def _tell_restored(self, status: ClusterStatus) -> None:
        is_start = not self._restored
        parts: dict[str, list[RestoreReport]] = {}

        for member in status.members:
            part = member.restored
            told = self._restored.get(member.index)
            if part is None or part == told:
                continue

            self._restored[member.index] = part
            parts.setdefault(part.path, []).append(part)

        for path, restored in parts.items():
            self._say(restored_line(path, restored))

            if is_start and path:
                self._tell_choice(name_of(path))
                for note in status.start_notes:
                    self._say(note, "yellow")

    def _tell_choice(self, name: str) -> None:
        """A checkpoint that was asked for is taken once: a later start goes on from a newer one."""
        chosen = name_of(self._restore_ckpt)
        if chosen and chosen != name:
            path = locate(self._checkpoint_dir) / override.MARKER
            marker = shlex.quote(str(path))
            remove = f"remove {marker}" if is_url(self._checkpoint_dir) else f"rm {marker}"

            self._say(
                f"--restore-ckpt {chosen} was obeyed by an earlier start, so the job goes on from "
                f"{name}; to go back once more: {remove}",
                "yellow",
            )

    def _tell_losses(self, status: ClusterStatus) -> None:
        for loss in status.losses:
            if loss not in self._losses:
                self._losses.add(loss)
                self._say(f"lost: {loss.what}", "red")

    def _tell_hooks(self, status: ClusterStatus) -> None:
        """The first error of each; how often it raised is counted, in the status and at the end."""
        for failure in hook_failures(status.members):
            if failure not in self._hook_failures:
                self._hook_failures.add(failure)
                self._say(f"{failure}; training goes on", "yellow")

    def _tell_end_by_file(self, barrier: BarrierStatus) -> None:
        """It holds training until the workers have heard of it, and nobody has to resume that."""
        holders = tuple(holder for holder in barrier.holders if holder.kind == "action")
        ends = held_by(replace(barrier, holders=holders))

        for phrase in ends:
            if phrase not in self._ends:
                self._ends.append(phrase)
                self._say(f"training is {phrase}", "yellow")

    def _tell_holds(self, barrier: BarrierStatus) -> None:
        """Who stops training, and that it goes on. A save holds it for a moment: no news."""
        self._tell_end_by_file(barrier)

        holders = tuple(
            holder for holder in barrier.holders if holder.kind not in ("save", "action")
        )
        holds = held_by(replace(barrier, holders=holders))

        for phrase in holds:
            if phrase not in self._holds:
                resume = suggested.ctl(self._model_dir, "resume")
                self._say(f"training is {phrase}; to let it go on: {resume}", "yellow")

        if self._holds and not holds:
            self._say("training goes on")

        self._holds = holds

    def _tell_increments(self, status: ClusterStatus) -> None:
        """Once, however often they fail, and that they do not any more."""
        since_s = status.increments_fail_since_s
        if since_s and since_s != self._increments_fail_since_s:
            failing = increments_line(status.increment_error, since_s)
            self._say(f"increments {failing}", "red")
        elif self._increments_fail_since_s and not since_s:
            self._say("increments work again")

        self._increments_fail_since_s = since_s

    def _tell_journal(self, error: str) -> None:
        if error and error != self._journal_error:
            self._say(f"the journal {journal_line(error)}", "red")
        elif self._journal_error and not error:
            self._say("the journal is written again")

        self._journal_error = error

    def _tell_saves(self, status: ClusterStatus) -> None:
        save = status.last_save
        error = save.error if save is not None else ""
        is_news = (status.ending, error) != (self._ending, self._save_error)

        if status.ending and is_news:
            self._tell_last_save(status.ending, error)
        elif error and error != self._save_error:
            self._tell_failed_save(status, error)
        elif not error and self._save_error and save is not None:
            self._say(f"saves work again: {save.path}")

        self._ending = status.ending
        self._save_error = error

    def _tell_failed_save(self, status: ClusterStatus, error: str) -> None:
        line = f"a save failed: {error}"
        if status.last_checkpoint:
            line += f"; {status.last_checkpoint} stands"
        if _is_training(status):
            line += "; training goes on"

        self._say(line, "red")

    def _tell_last_save(self, ending: str, error: str) -> None:
        if not error or not self._ending:
            self._say(f"the job ends ({ending}); saving what was trained")

        if error and error != self._save_error:
            kill = suggested.ctl(self._model_dir, "app", "kill")
            self._say(
                f"the last save failed: {error}; it is tried again, "
                "and the parameter servers stay up meanwhile; "
                f"to end the job without saving: {kill}",
                "red",
            )

    def _say(self, line: str, style: str = "") -> None:
        print_line(self._console, line, style)


def _is_training(status: ClusterStatus) -> bool:
    """Whether somebody takes steps: a worker, or programs of their own where there are none."""
    if status.phase != "running" or status.is_stopped:
        return False

    workers = [member for member in status.members if member.role == "worker"]
    if not workers:
        return True

    return any(member.standing == "alive" and not member.is_finished for member in workers)

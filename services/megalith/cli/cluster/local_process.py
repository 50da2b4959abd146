"""One service of a local cluster: a child process with a log."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from megalith.errors import MegalithError
from megalith.runner.plan import PlannedProcess
from megalith.runtime.config import command_line
from megalith.runtime.files import open_plain
from megalith.runtime.process.lifecycle import SIGNALLED

_TRACEBACK = "Traceback (most recent call"
_TRACEBACK_LINES = 40


class ProcessFailed(MegalithError):
    """A process of the local cluster ended by itself, or did not come up."""

    code = "process_failed"


class LocalProcess:
    """One service, logging to a file.

    It has a session of its own, so that Ctrl-C reaches only its supervisor. `starts` counts how
    often it was started, this one included; `last_status` is the exit status of the one before.
    """

    def __init__(
        self, planned: PlannedProcess, log_dir: Path, starts: int = 1, last_status: int = 0
    ) -> None:
        self.planned = planned
        self.starts = starts
        self.last_status = last_status
        self.name = planned.name
        self.log = log_dir / f"{planned.name}.log"

        flags = command_line.to_flags({**planned.values, "exit_with_stdin": True})
        environ = {**os.environ, **planned.environ, "PYTHONUNBUFFERED": "1"}
        # Appended: a second start must not cut the log of the first.
        with open_plain(self.log, "ab") as log:
            self._logged_before = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"megalith.{planned.service}", *flags],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environ,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status, negative if it was killed; None while it runs."""
        return self._process.poll()

    @property
    def is_stopped_by_signal(self) -> bool:
        """Whether it was killed, or told by a signal to stop before its work was done."""
        status = self.poll() or 0
        return status < 0 or status > SIGNALLED

    def failure(self) -> ProcessFailed:
        """How it ended, with the last lines of its log if they can say why."""
        status = self.poll() or 0
        ended = f"{self.name} {how_ended(status)}"

        if status == -signal.SIGKILL:
            cause = "by hand, or because the machine had no memory left"
            return ProcessFailed(f"{ended}: {cause}; its log is {self.log}")

        last_lines = self.last_lines()
        return ProcessFailed(f"{ended}; {self.log} ends with\n{last_lines}")

    def terminate(self) -> None:
        if self.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait_or_kill(self, deadline: float) -> None:
        left_s = max(0.0, deadline - time.monotonic())
        try:
            self._process.wait(left_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

        if self._process.stdin is not None:
            self._process.stdin.close()

    def logged(self) -> str:
        """What it has written to its log since it was started."""
        with open(self.log, "rb") as log:
            log.seek(self._logged_before)
            return log.read().decode(errors="replace")

    def last_lines(self, count: int = 5) -> str:
        """The end of its log.

        If there is a traceback, from the last one on: its file and line are what helps.
        """
        lines = self.logged().splitlines()
        starts = []
        for number, line in enumerate(lines):
            if line.startswith(_TRACEBACK):
                starts.append(number)

        if starts:
            since_traceback = len(lines) - starts[-1]
            fitting = min(_TRACEBACK_LINES, since_traceback)
            count = max(count, fitting)

        return "\n".join(lines[-count:])


def how_ended(status: int) -> str:
    """An exit status in words."""
    if status > SIGNALLED:
        return f"was stopped (signal {status - SIGNALLED})"
    if status < 0:
        return f"was killed (signal {-status})"

    return f"exited with {status}"

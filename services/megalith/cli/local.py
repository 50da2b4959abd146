"""A whole cluster on this machine: real processes that find each other as on many."""

import dataclasses
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from megalith.cli.waiting import WaitingLines
from megalith.client import Controller
from megalith.controller.ownership import check_free, refusal
from megalith.runner import plan
from megalith.runner.config import RunnerConfig
from megalith.runner.plan import PlannedProcess
from megalith.runner.wiring import wired
from megalith.runtime import settings
from megalith.runtime.files import open_plain, prepare_model_dir
from megalith.runtime.lifecycle import SIGNALLED
from megalith.wire import appmaster_address, controller_address
from megalith.wire.errors import MegalithError, ModelDirInUse

_START_S = 60.0  # for the controller to come up; imports from a cold disk are the slow part
_STOP_S = 6.0  # a service exits within 5 s of SIGTERM; what is left then is killed
_POLL_S = 0.05
_TRACEBACK_LINES = 40
_LOCK_FILE = "up.lock"


class ProcessFailed(MegalithError):
    """A process of the local cluster ended by itself, or did not come up."""

    code = "process_failed"


class LocalProcess:
    """One service, logging to a file, in a session of its own so that Ctrl-C reaches only its supervisor.

    `starts` counts how often it was started, this one included; `last_status` is the exit status of the one before.
    """

    def __init__(
        self, planned: PlannedProcess, log_dir: Path, starts: int = 1, last_status: int = 0
    ) -> None:
        self.planned, self.starts, self.last_status = planned, starts, last_status
        self.name, self.log = planned.name, log_dir / f"{planned.name}.log"
        variables = [f"{name}={value}" for name, value in planned.environ.items()]
        command = ["megalith", planned.service, *settings.to_flags(planned.values)]
        self.command = shlex.join(["env", *variables, *command] if variables else command)
        flags = settings.to_flags({**planned.values, "exit_with_stdin": True})
        with open_plain(self.log, "ab") as log:  # a second start must not cut the log of the first
            self._logged_before = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"megalith.{planned.service}", *flags],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **planned.environ, "PYTHONUNBUFFERED": "1"},
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
        """How it ended, with the last lines of its log."""
        how = how_ended(self.poll() or 0)
        return ProcessFailed(f"{self.name} {how}; {self.log} ends with\n{self.last_lines()}")

    def terminate(self) -> None:
        if self.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait_or_kill(self, deadline: float) -> None:
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
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
        """The end of its log; from the last traceback on, if there is one: its file and line are what helps."""
        lines = self.logged().splitlines()
        starts = [
            number
            for number, line in enumerate(lines)
            if line.startswith("Traceback (most recent call")
        ]
        if starts and len(lines) - starts[-1] > count:
            count = min(_TRACEBACK_LINES, len(lines) - starts[-1])
        return "\n".join(lines[-count:])


def how_ended(status: int) -> str:
    """An exit status in words."""
    if status > SIGNALLED:
        return f"was stopped (signal {status - SIGNALLED})"
    return f"was killed (signal {-status})" if status < 0 else f"exited with {status}"


class LocalCluster:
    """Controller, parameter servers, workers and AppMaster as child processes.

    They end with this process, however it ends: each exits when the pipe to its standard input closes.
    """

    def __init__(self, config: RunnerConfig, *, stay_up: bool) -> None:
        self.model_dir = prepare_model_dir(config.model_dir)
        self._config = dataclasses.replace(config, model_dir=str(self.model_dir))
        self._stay_up = stay_up
        self._app_id = f"megalith-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self._log_dir = self.model_dir / "logs"
        self._log_dir.mkdir(exist_ok=True)
        self.processes: list[LocalProcess] = []
        self.controller = Controller(None, str(self.model_dir), timeout_s=5.0)
        self._lock: IO[str] | None = None

    def start(self, lines: WaitingLines) -> None:
        """Start everything; returns once the controller answers. On failure nothing is left running."""
        try:
            controller = plan.controller(self._config, stay_up=self._stay_up)
            first, *members = wired(
                self._config.discovery, [controller, *plan.members(self._config)]
            )
            self._take_model_dir(controller.values["job"])
            before = self._address_written_at()
            self._wait_for_address(self._spawn(first), before, lines)
            (self.model_dir / appmaster_address.FILE_NAME).unlink(
                missing_ok=True
            )  # of an earlier job
            for planned in (*members, plan.appmaster(self._config, self._app_id)):
                self._spawn(planned)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """SIGTERM to all, kill what does not go; returns when every process is gone."""
        for process in reversed(self.processes):
            process.terminate()
        deadline = time.monotonic() + _STOP_S
        for process in reversed(self.processes):
            process.wait_or_kill(deadline)
        self.controller.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def start_again(self, name: str) -> LocalProcess:
        """Start a process that has ended once more, with the same arguments and log."""
        (place,) = [place for place, process in enumerate(self.processes) if process.name == name]
        ended = self.processes[place]
        ended.wait_or_kill(time.monotonic())
        self.processes[place] = LocalProcess(
            ended.planned, self._log_dir, ended.starts + 1, ended.poll() or 0
        )
        return self.processes[place]

    @property
    def controller_status(self) -> int | None:
        """Exit status of the controller, negative for a signal; None while it runs."""
        return self.processes[0].poll()

    def _take_model_dir(self, job: str) -> None:
        """ModelDirInUse while another job uses the directory; nothing of that job has been touched then.

        The lock of `up` comes first: a look at the controller's would keep the other job's controller from starting
        again just then.
        """
        lock = open(self.model_dir / _LOCK_FILE, "a")  # noqa: SIM115  # held until `stop`
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            if address := controller_address.read(self.model_dir):
                raise refusal(self.model_dir, address) from None
            raise ModelDirInUse(
                f"--model-dir={self.model_dir}: another megalith up or train is starting there; "
                "stop that one or choose another"
            ) from None
        self._lock = lock  # `stop` closes it, also when the next line fails
        check_free(self.model_dir, job or str(self.model_dir.absolute()))

    def _spawn(self, planned: PlannedProcess) -> LocalProcess:
        process = LocalProcess(planned, self._log_dir)
        self.processes.append(process)
        return process

    def _address_written_at(self) -> int:
        try:
            return (self.model_dir / controller_address.FILE_NAME).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _wait_for_address(self, controller: LocalProcess, before: int, lines: WaitingLines) -> None:
        """Until the new controller has written its address; a file from an earlier one does not count."""
        deadline = time.monotonic() + _START_S
        while self._address_written_at() in (0, before):
            if controller.poll() is not None or time.monotonic() > deadline:
                raise ProcessFailed(
                    f"the controller did not come up; {controller.log} ends with\n{controller.last_lines()}"
                )
            lines.tell("the controller to come up", [controller])
            time.sleep(_POLL_S)

"""A whole cluster on this machine: real processes that find each other as on many."""

import dataclasses
import os
import time
from typing import IO

from megalith.cli.cluster import model_dir
from megalith.cli.cluster.local_process import LocalProcess, ProcessFailed
from megalith.cli.cluster.waiting import WaitingLines
from megalith.control import Controller, address_file
from megalith.runner import plan
from megalith.runner.config import RunnerConfig
from megalith.runner.plan import PlannedProcess
from megalith.runner.wiring import wired
from megalith.runtime.files import prepare_model_dir

_START_S = 60.0  # for the controller to come up; imports from a cold disk are the slow part
_STOP_S = 6.0  # a service exits within 5 s of SIGTERM; what is left then is killed
_POLL_S = 0.05


class LocalCluster:
    """Controller, parameter servers, workers and AppMaster as child processes.

    They end with this process, however it ends: each exits when the pipe to its standard input
    closes.
    """

    def __init__(self, config: RunnerConfig, *, stay_up: bool) -> None:
        self.model_dir = prepare_model_dir(config.model_dir)
        self._config = dataclasses.replace(config, model_dir=str(self.model_dir))
        self._stay_up = stay_up

        started_at = time.strftime("%Y%m%d-%H%M%S")
        self._app_id = f"megalith-{started_at}-{os.getpid()}"
        self._log_dir = self.model_dir / "logs"
        self._log_dir.mkdir(exist_ok=True)

        self.processes: list[LocalProcess] = []
        self.controller = Controller(None, str(self.model_dir), timeout_s=5.0)
        self._lock: IO[bytes] | None = None

    def take(self) -> None:
        """Keep other jobs off the directory until `stop`; ModelDirInUse while one uses it."""
        if self._lock is not None:
            return

        controller = plan.controller(self._config, stay_up=self._stay_up)
        job = controller.values["job"] or str(self.model_dir.absolute())
        self._lock = model_dir.take(self.model_dir, job)

    def start(self, lines: WaitingLines) -> None:
        """Start everything; returns once the controller answers.

        On failure nothing is left running.
        """
        config = self._config
        try:
            planned = [plan.controller(config, stay_up=self._stay_up), *plan.members(config)]
            controller, *members = wired(config.discovery, planned)
            appmaster = plan.appmaster(config, self._app_id)

            self.take()
            before = self._address_written_at()
            started = self._spawn(controller)
            self._wait_for_address(started, before, lines)

            # One that an earlier job left
            appmaster_file = self.model_dir / address_file.APPMASTER.name
            appmaster_file.unlink(missing_ok=True)

            for process in (*members, appmaster):
                self._spawn(process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """SIGTERM to all, kill what does not go; returns when every process is gone."""
        last_first = self.processes[::-1]
        for process in last_first:
            process.terminate()

        deadline = time.monotonic() + _STOP_S
        for process in last_first:
            process.wait_or_kill(deadline)

        self.controller.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def start_again(self, name: str) -> LocalProcess:
        """Start a process that has ended once more, with the same arguments and log."""
        names = [process.name for process in self.processes]
        number = names.index(name)
        ended = self.processes[number]
        ended.wait_or_kill(time.monotonic())

        status = ended.poll() or 0
        again = LocalProcess(ended.planned, self._log_dir, ended.starts + 1, status)
        self.processes[number] = again
        return again

    @property
    def controller_status(self) -> int | None:
        """Exit status of the controller, negative for a signal; None while it runs."""
        return self.processes[0].poll()

    def _spawn(self, planned: PlannedProcess) -> LocalProcess:
        process = LocalProcess(planned, self._log_dir)
        self.processes.append(process)
        return process

    def _address_written_at(self) -> int:
        path = self.model_dir / address_file.CONTROLLER.name
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _wait_for_address(self, controller: LocalProcess, before: int, lines: WaitingLines) -> None:
        """Until the new controller has written its address.

        A file from an earlier one does not count.
        """
        deadline = time.monotonic() + _START_S
        while self._address_written_at() in (0, before):
            is_gone = controller.poll() is not None
            if is_gone or time.monotonic() > deadline:
                raise ProcessFailed(
                    f"the controller did not come up; {controller.log} ends with\n"
                    f"{controller.last_lines()}"
                )

            lines.tell("the controller to come up", [controller])
            time.sleep(_POLL_S)

"""A cluster of real processes, with faults as verbs."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from megalith.control import Controller
from support.waiting import LIMIT_S, wait_until


def is_gone(pid):
    """No such process, or a zombie that nobody has waited for."""
    return state_of(Path(f"/proc/{pid}")) in (None, "Z", "X")


def arguments_of(pid):
    """The command line of a process, as a set of words; empty once it is gone."""
    try:
        return set(Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0"))
    except (FileNotFoundError, ProcessLookupError):
        return set()


def wait_until_stopped(pid):
    """Return once every thread of a process that got SIGSTOP has stopped.

    On a busy machine some run on for a while.
    """

    def are_all_stopped():
        states = {state_of(task) for task in Path(f"/proc/{pid}/task").glob("*")}
        return states == {"T"}

    wait_until(are_all_stopped, what=f"process {pid} stops")


def state_of(task):
    """The letter of the state that a process or thread is in; None once it is gone."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def children_of(pid):
    """Processes started by `pid`, zombies left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


class Process:
    """One `python -m megalith.<service>` or `megalith <command>`, logging to a file."""

    def __init__(self, name, command, directory, environ=None):
        self.name, self.log = name, directory / f"{name}-{time.monotonic_ns()}.log"
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environ or {})},
            )
        self.pid = self._process.pid

    def signal(self, number):
        self._process.send_signal(number)

    def pause(self):
        """Stop it, and return once it is stopped."""
        self.signal(signal.SIGSTOP)
        wait_until_stopped(self.pid)

    def kill(self):
        self.signal(signal.SIGKILL)
        self._process.wait(LIMIT_S)

    def terminate(self):
        self.signal(signal.SIGTERM)

    def wait(self, timeout_s=LIMIT_S):
        """The exit status, once there is one; subprocess.TimeoutExpired after `timeout_s`."""
        return self._process.wait(timeout_s)

    def poll(self):
        return self._process.poll()

    def output(self):
        return self.log.read_text(errors="replace")  # the last character may be written in part

    def reported(self, key):
        """A value that the process logged as key=value, once it has."""
        return wait_until(
            lambda: re.search(rf"{key}=(\S+)", self.output()), what=f"{self.name} logs {key}"
        ).group(1)

    def close(self):
        if self.poll() is None:
            self.kill()


class Processes:
    """Starts services as processes on free ports; everything still alive at the end is killed."""

    def __init__(self, directory):
        self.directory = directory
        self.model_dir = directory / "model"
        self._stack = ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stack.close()

    def start(self, service, name=None, environ=None, **settings):
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
        return self.run(
            name or service, [sys.executable, "-m", f"megalith.{service}", *flags], environ
        )

    def run(self, name, command, environ=None):
        process = Process(name, command, self.directory, environ)
        self._stack.callback(process.close)
        return process

    def pause(self, pid):
        """Stop a process that one of these has started, and return once it is stopped.

        At the end it goes on, because a process that is stopped does not notice that its parent is
        gone, and would stay for ever.
        """
        os.kill(pid, signal.SIGSTOP)
        self._stack.callback(_let_go_on, pid)
        wait_until_stopped(pid)

    def cli(self, *arguments):
        """`megalith ...` as a shell without job control starts it with `&`: with SIGINT ignored."""
        as_background_job = ["sh", "-c", 'trap "" INT; exec "$0" "$@"']
        return self.run(
            "cli", [*as_background_job, sys.executable, "-m", "megalith", *map(str, arguments)]
        )

    def start_controller(self, **settings):
        defaults = {"model_dir": self.model_dir, "port": 0, "metrics_port": 0}
        return self.start("controller", **(defaults | settings))

    def start_member(self, service, index, **settings):
        patient = {
            "join_timeout_s": 120
        }  # on a busy machine the controller starts slowly, and all start at once
        return self.start(
            service,
            f"{service}-{index}",
            model_dir=self.model_dir,
            index=index,
            **(patient | settings),
        )

    def start_cluster(self, num_ps=2, num_workers=2, batch_size=256, **controller):
        """Everything, training until stopped; returns processes by name."""
        members = {
            "controller": self.start_controller(
                num_ps=num_ps, num_workers=num_workers, **controller
            )
        }
        for index in range(num_ps):
            members[f"ps-{index}"] = self.start_member("ps", index)
        for index in range(num_workers):
            members[f"worker-{index}"] = self.start_member("worker", index, batch_size=batch_size)
        return members

    def job(self, timeout_s=LIMIT_S):
        job = Controller(None, str(self.model_dir), timeout_s)
        self._stack.callback(job.close)
        return job


def _let_go_on(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def run_cli(*arguments, timeout_s=240, environ=None):
    """`megalith ...` to its end: (status, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-m", "megalith", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout, done.stderr

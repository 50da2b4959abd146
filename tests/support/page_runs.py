"""Runs the blocks of a documentation page, in order, in a folder of their own.

The Python blocks of a page are one program. The shell blocks are run by bash, with the `megalith` and
`python` of this environment. A text block right below a block is what that one prints.
"""

import contextlib
import io
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from megalith.control import Controller
from megalith.errors import MegalithError
from megalith.runner.free_ports import free_ports
from support import back_ends
from support.pages import ROOT, blocks
from support.waiting import wait_until

START_S = 120.0
BLOCK_S = 240.0
IMAGE_S = 840.0  # of a block that builds the image


def words(text):
    """The words of a text without its numbers, which differ from run to run."""
    return re.findall(r"[A-Za-z]{2,}", text)


def is_said(expected, printed):
    """Do the words of `expected` occur in `printed`, in this order?"""
    rest = iter(words(printed))
    return all(word in rest for word in words(expected))


class PageRun:
    """One page, run in `folder`.

    `with_clusters=False` is for a test whose own servers stand in for the cluster of the page: Python blocks
    and `megalith ctl` are run, and nothing that starts or ends processes.
    """

    def __init__(self, page, folder, with_clusters):
        self._page = page
        self._folder = Path(folder)
        # A reader is in a clone.
        (self._folder / "examples").symlink_to(ROOT / "examples")
        self._with_clusters = with_clusters
        self._names = {"__name__": "__main__"}  # the variables of the Python program
        self._running = None
        self.num_run = 0
        self.num_compared = 0
        self.skipped = []  # "README.md:12: needs docker: ...", for whoever asks what was not run

    def run(self):
        last_block, last_output = None, None
        try:
            for block in blocks((ROOT / self._page).read_text()):
                where = f"{self._page}:{block.line}"
                if block.language == "text":
                    if last_output is not None and block.follows(last_block):
                        self._compare(last_block, last_output, block.text, where)
                    continue
                last_block, last_output = block, self._run_block(block, where)
        finally:
            self._end_running()

    def _run_block(self, block, where):
        """What the block printed; None if it was not run, or runs on."""
        if not block.marks.is_run or not self._is_possible(block, where):
            return None
        self.num_run += 1
        if block.language == "python":
            return self._python(block, where)
        if block.marks.runs_on:
            self._end_running()
            text = with_real_addresses(block, self._folder)
            self._running = RunningBlock(text, self._folder, block.marks.until_step)
            return self._running.output
        return self._shell(block, where)

    def _is_possible(self, block, where):
        if not self._with_clusters and block.language == "sh":
            return is_only_ctl(block.text) and not block.marks.needs
        for need in block.marks.needs:
            if how := missing(need):
                self.skipped.append(f"{where}: {how}")
                return False
        return True

    def _python(self, block, where):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.chdir(self._folder):
            exec(compile(block.text, where, "exec"), self._names)
        return out.getvalue

    def _shell(self, block, where):
        done = subprocess.run(
            ["bash", "-eu", "-c", with_real_addresses(block, self._folder)],
            cwd=ROOT if "docker" in block.marks.needs else self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ(),
            timeout=IMAGE_S if "docker" in block.marks.needs else BLOCK_S,
        )
        assert done.returncode == 0, f"{where} ended with {done.returncode}:\n{done.stdout}"
        return lambda: done.stdout

    def _compare(self, block, output, expected, where):
        if block.marks.runs_on:
            self._end_running()
        if block.language == "python":
            assert output().strip() == expected.strip(), where
        elif self._with_clusters:
            assert is_said(expected, output()), f"{where}: printed was\n{output()}"
        self.num_compared += 1

    def _end_running(self):
        if self._running is not None:
            running, self._running = self._running, None
            running.end()


class RunningBlock:
    """Commands that run on until Ctrl-C, such as `megalith up`, or several that end with `&`."""

    def __init__(self, text, folder, until_step):
        if re.search(r"&$", text, re.MULTILINE):
            text = f"trap 'kill $(jobs -p)' INT TERM\n{text}\nwait || true\nwait || true"
        self._log = folder / f"block-{secrets.token_hex(4)}.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-eu", "-c", text],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ(),
                start_new_session=True,  # a process group of its own, which gets the Ctrl-C
            )
        named = re.search(r"--model-dir[ =](\S+)", text)
        self._model_dir = folder / (named[1] if named else "model")
        try:
            wait_until(lambda: self._trains(until_step), START_S, f"training by {text}")
        except BaseException:
            print(self.output())
            self.end()
            raise

    def _trains(self, step):
        """Is the cluster formed, and has each of its workers come to that step of the job?"""
        assert self._process.poll() is None, f"it ended:\n{self.output()}"
        try:
            with contextlib.closing(Controller(None, str(self._model_dir), 5.0)) as job:
                status = job.status()
        except (MegalithError, OSError):
            return False
        workers = [member for member in status.members if member.role == "worker"]
        has_begun = all(worker.position > 0 for worker in workers)
        return status.phase == "running" and has_begun and status.global_step >= step

    def output(self):
        return self._log.read_text(errors="replace")

    def end(self):
        """Ctrl-C, and what a shell does next where that is not enough."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
                break


def environ():
    """As in a shell in which the environment of the tests is activated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ports = ("MEGALITH_CONTROLLER_PORT", "MEGALITH_CONTROLLER_METRICS_PORT")
    any_port = dict.fromkeys(ports, "0")  # several pages are run at once
    return {**os.environ, **any_port, "PATH": path, "COLUMNS": "100"}


def is_only_ctl(text):
    """Does the block only ask the controller of a job, and start or end nothing?"""
    commands = [line for line in text.splitlines() if line.strip()]
    return all(re.match(r"megalith ctl (?!.*\bapp\b)", line) for line in commands)


def missing(need):
    """Why a block cannot be run here, and how to get what it needs; empty if it can."""
    if need in ("zookeeper", "consul"):
        return "" if back_ends.address_of(need) else f"no {need}: {back_ends.HOW_TO_START}"
    if need == "docker":
        asked = shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True)
        is_there = asked and asked.returncode == 0
        return (
            "" if is_there else "no Docker engine answers: start one, e.g. `systemctl start docker`"
        )
    assert need == "grpcurl", f"a page needs {need}, which no test can provide"
    return "" if shutil.which("grpcurl") else "no grpcurl on the PATH: install it"


def with_real_addresses(block, folder):
    """The text of a block with the servers and folders of this machine in place of the page's."""
    replaced = {
        "/shared": str(folder),
        "10.0.0.1": "127.0.0.1",
        "10.0.0.2": "127.0.0.2",
    }
    job = f"page-{folder.name}"  # a name of its own among all that use the same server
    if "zookeeper" in block.marks.needs:
        replaced["zk1,zk2/clicks"] = f"{back_ends.address_of('zookeeper')}/{job}"
    if "consul" in block.marks.needs:
        replaced["127.0.0.1:8500/clicks"] = f"{back_ends.address_of('consul')}/{job}"
    if "docker" in block.marks.needs:
        # Beside a cluster of the user's, which has the usual names and ports.
        port, metrics_port = free_ports(2)
        replaced["localhost:7600"] = f"localhost:{port}"
        names = {
            "COMPOSE_PROJECT_NAME": f"megalith-page-{secrets.token_hex(4)}",
            "MEGALITH_IMAGE": "megalith-page",
            "MEGALITH_PORT": port,
            "MEGALITH_METRICS_PORT": metrics_port,
        }
        exports = "".join(f"export {name}={value}\n" for name, value in names.items())
        text = f"{exports}trap 'docker compose down --volumes' EXIT\n{block.text}"
    else:
        text = block.text
    for given, real in replaced.items():
        text = text.replace(given, real)
    return text

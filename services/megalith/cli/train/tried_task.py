"""Whether workers will find the task of a job, tried before any process of the job is started.

A task of one's own is imported by a process that does nothing else and ends, as a worker will do
it. So what the module does to a process that imports it, and the memory that it takes there, are
not left to this command. What it has begun ends with that process: what it has registered to be
done at an exit is done, and processes that it has started are killed.
"""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading

from megalith.cli.tasks import TASKS
from megalith.errors import InvalidSetting
from megalith.runner.config import RunnerConfig
from megalith.runtime.config.commands import fail
from megalith.runtime.config.settings import build
from megalith.runtime.task_loading import task_factory
from megalith.worker.config import TaskSettings

_LONGEST_S = 60.0  # of an import; what takes longer is left to the workers, and what they say


def refuse_unusable(config: RunnerConfig) -> None:
    """A usage error if workers would not get the task: no class or function, no import, no keyword.

    Whether the task can be made of what it is given is seen by the workers: that may read its data.
    """
    if not config.num_workers:
        return

    settings = build(TaskSettings, config.settings_of("worker"))
    if settings.task in TASKS:
        reason = _refusal(settings) if settings.options() else ""
    else:
        reason = _refusal_elsewhere(settings)

    if reason:
        fail(reason)


def _refusal(settings: TaskSettings) -> str:
    """Why the task cannot be used; empty if it can, as far as one knows without making it."""
    try:
        task_factory(settings.task, settings.keywords())
    except InvalidSetting as error:
        return str(error)
    except SystemExit as error:
        return f"--task={settings.task}: it does not import: SystemExit: {error}"

    return ""


def _refusal_elsewhere(settings: TaskSettings) -> str:
    """The same, found out by another process."""
    told = [settings.task, json.dumps(settings.options())]
    # In a file: a pipe stays open as long as some process that the module has started.
    with tempfile.TemporaryFile() as said:
        trial = subprocess.Popen(
            [sys.executable, "-m", __name__, *told],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with trial:
            try:
                trial.wait(_LONGEST_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(trial.pid, signal.SIGKILL)

        said.seek(0)
        return said.read().decode()


def _main(task: str, options: str) -> None:
    """In that process. What the module prints is for its workers to print."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    said = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)

    reason = _refusal(TaskSettings(task=task, task_options=options))
    os.write(said, reason.encode())
    atexit._run_exitfuncs()
    os._exit(0)  # a thread that the module has started may go on for ever


def _end_with_stdin() -> None:
    """Standard input ends when the command has died, by whatever signal."""
    while os.read(0, 4096):
        pass

    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    _main(*sys.argv[1:])

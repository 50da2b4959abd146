"""Training in one process: a model without servers, and the loop that trains it."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.storage.location import Location
from megalith.collective.ranks import Ranks
from megalith.controller.ownership import hold
from megalith.errors import InvalidRequest
from megalith.local.loop import LoopSettings, TrainingLoop
from megalith.local.model import LocalModel
from megalith.local.run import LocalRun
from megalith.local.wishes import Operator
from megalith.runtime.files import prepare_model_dir
from megalith.runtime.process.freed_memory import keep_freed_memory
from megalith.worker.hooks.chosen import hooks_of_local
from megalith.worker.lessons import ON_NAN
from megalith.worker.task import Task


def local_train(
    task: Task[Any],
    *,
    model_dir: str | Path | None = None,
    start_from: str | Path | None = None,
    max_steps: int = 0,
    save_every_steps: int = 0,
    on_nan: str = "stop",
    num_threads: int = 2,
    prefetch_batches: int = 2,
    batch_size: int = 0,
    evaluates: bool = True,
    on_step: Callable[[int, float], None] | None = None,
    figures_every_s: float = 600.0,
) -> LocalRun:
    """Train a task in this process, from the newest checkpoint of its model directory on.

    ModelDirInUse while a job or another `local_train` uses the directory.

    Hooks of the task are called as those of a worker are; there is no cluster for them.

    Parameters
    ----------
    task
        The same object that workers of a cluster train.
    model_dir
        Where checkpoints are saved: at the end, and every `save_every_steps`. None saves nothing.
    start_from
        The folder of a checkpoint to start from, instead of the newest one of `model_dir`.
    max_steps
        The global step at which training ends; 0 = the input decides.
    on_nan
        What happens to a batch whose loss is not finite: "stop" or "skip".
    num_threads
        Threads that read and write tables. Another one reads the input.
    batch_size
        Of numbered batches; a checkpoint with another one has other numbers.
    on_step
        Called after each step with the global step and the loss.
    figures_every_s
        Seconds between two lines in the log about speed and the sizes of tables; 0 = none.
    """
    check_on_nan(on_nan)
    settings = LoopSettings(
        max_steps=max_steps,
        on_nan=on_nan,
        prefetch_batches=prefetch_batches,
        batch_size=batch_size,
        evaluates=evaluates,
    )
    keep_freed_memory()
    folder = None if model_dir is None else prepare_model_dir(str(model_dir))
    with nullcontext() if folder is None else hold(folder):
        loop = TrainingLoop(
            task,
            LocalModel(num_threads),
            Ranks(),
            settings,
            folder,
            hooks=hooks_of_local(task, figures_every_s),
            operator=lambda step: Operator(step, save_every_steps),
            variables=task.variables,
            on_step=on_step,
        )
        return loop.run(start_of(folder, start_from))


def check_on_nan(on_nan: str) -> None:
    if on_nan not in ON_NAN:
        raise InvalidRequest(f"on_nan={on_nan!r}: expected one of {ON_NAN}")


def start_of(folder: Path | None, start_from: str | Path | None) -> Location | None:
    """The checkpoint to start from; None = there is none."""
    if start_from is not None:
        return Path(start_from)

    return None if folder is None else catalog.latest(folder)

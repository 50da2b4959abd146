"""Full synchronous training: tables in the ranks, no servers."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from megalith.checkpoint.storage.location import Location
from megalith.collective.choose import AUTO, open_engine
from megalith.collective.ranks import Ranks
from megalith.controller.ownership import hold
from megalith.local.loop import LoopSettings, TrainingLoop
from megalith.local.run import LocalRun
from megalith.local.training import check_on_nan, start_of
from megalith.runtime.files import prepare_model_dir
from megalith.runtime.process.freed_memory import keep_freed_memory
from megalith.sync.model import RankModel
from megalith.sync.operator import RankOperator
from megalith.sync.same_start import check_same, from_first_rank
from megalith.worker.hooks.chosen import hooks_of_task
from megalith.worker.hooks.hook_list import HookList
from megalith.worker.summaries import StepSummaries
from megalith.worker.task import Task

SYNC_TIMEOUT_S = 300.0


def sync_train(
    task: Task[Any],
    *,
    ranks: Ranks | None = None,
    collective: str = AUTO,
    sync_timeout_s: float = SYNC_TIMEOUT_S,
    model_dir: str | Path | None = None,
    start_from: str | Path | None = None,
    max_steps: int = 0,
    save_every_steps: int = 0,
    save_every_s: float = 0.0,
    save_only_online: bool = False,
    figures_every_s: float = 600.0,
    on_nan: str = "stop",
    num_threads: int = 1,
    prefetch_batches: int = 2,
    batch_size: int = 0,
    evaluates: bool = True,
    input_name: str = "",
    hooks: HookList | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    on_step: Callable[[int, float], None] | None = None,
    on_begun: Callable[[], None] | None = None,
    summaries: StepSummaries | None = None,
) -> LocalRun:
    """Train a task on all ranks together, from the newest checkpoint of the model directory on.

    Each rank calls it with the same task and settings; a process that no launcher has started is
    the only rank. An error of one rank ends all of them: the others raise RankFailed, which says
    which rank it was and why.

    Parameters
    ----------
    task
        What `local_train` and workers of a cluster train. Rank r of n reads `input(mode, r, n)`.
    ranks
        The ranks that this process is one of; None = those that `collective` finds.
    collective
        "mpi", "gloo", "horovod" or "byteps"; "auto" is the one whose launcher was used.
    sync_timeout_s
        How long a rank waits for another one in a call before RankSilent.
    model_dir
        One directory that all ranks reach. None saves nothing.
    save_only_online
        Make planned saves only while the model directory has a file ONLINE.
    figures_every_s
        Seconds between two lines of rank 0's log that say how large the tables are; 0 = none.
    input_name
        What the checkpoint calls the input: a cluster goes on with one of the same name.
    hooks
        What runs beside the steps; None = what the task brings along.
    is_stopped
        Asked before each step; True on any rank ends training on all of them.
    on_step
        Called on rank 0 after each step with the global step and the loss of its own batch.
    on_begun
        Called on rank 0 before the first step, once the model is restored and goes with the task.
    summaries
        What this rank writes for TensorBoard, of its own batches; None = nothing.

    The others are those of `local_train`.
    """
    check_on_nan(on_nan)
    settings = LoopSettings(
        max_steps=max_steps,
        on_nan=on_nan,
        prefetch_batches=prefetch_batches,
        batch_size=batch_size,
        evaluates=evaluates,
        input_name=input_name,
    )
    keep_freed_memory()
    if ranks is None:
        ranks = open_ranks(collective, sync_timeout_s)

    with ranks.ending_together():
        folder = None if model_dir is None else prepare_model_dir(str(model_dir))
        check_same(ranks, task.tables, task.variables, settings, folder)
        is_holder = folder is not None and ranks.is_first
        with hold(folder) if folder is not None and is_holder else nullcontext():
            ranks.barrier()  # rank 0 has the directory
            start = _start(ranks, folder, start_from)
            loop = TrainingLoop(
                task,
                RankModel(ranks, num_threads),
                ranks,
                settings,
                folder,
                hooks=hooks if hooks is not None else HookList(hooks_of_task(task)),
                operator=lambda step: RankOperator(
                    folder if ranks.is_first else None,
                    step,
                    save_every_s=save_every_s,
                    save_every_steps=save_every_steps,
                    save_only_online=save_only_online,
                    figures_every_s=figures_every_s,
                    is_stopped=is_stopped,
                ),
                variables=from_first_rank(ranks, task.variables),
                on_step=on_step if ranks.is_first else None,
                on_begun=on_begun if ranks.is_first else None,
                summaries=summaries,
            )
            run = loop.run(start)
            ranks.barrier()  # none goes before all are through
            return run


def open_ranks(collective: str = AUTO, sync_timeout_s: float = SYNC_TIMEOUT_S) -> Ranks:
    """The ranks that a launcher has started, of which this process is one. Once a process."""
    return Ranks(open_engine(collective, os.environ, sync_timeout_s))


def _start(ranks: Ranks, folder: Path | None, start_from: str | Path | None) -> Location | None:
    """Where rank 0 starts: a checkpoint that another rank cannot see is an error there."""
    found = start_of(folder, start_from) if ranks.is_first else None
    name = ranks.told("" if found is None else str(found))
    return Path(name) if name else None

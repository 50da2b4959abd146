"""Training during a save, and the time that a killed ps is missed: a cluster of processes."""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from report import report

from megalith.client import (
    Adagrad,
    Ids,
    Segment,
    Sgd,
    TableConfig,
    VariableConfig,
    Zeros,
    connect,
)
from megalith.errors import OutcomeUnknown
from support.processes import Processes
from support.routes import routing_of
from support.waiting import wait_until

ROWS = int(os.environ.get("CHECKPOINT_ROWS", "10000000"))
KILL_ROWS = int(os.environ.get("CHECKPOINT_KILL_ROWS", "5000000"))
NUM_PS = 2
STEP_IDS = 4096
QUIET_S = 20.0
TABLE = TableConfig("rows", (Segment(16, optimizer=Adagrad(0.05)),))
INCREMENT_EVERY_S = 5.0
NUM_INCREMENTS = 6
LOSS_EVERY_S = 10.0
DENSE_FLOATS = 1 << 20  # of a variable, which each increment copies while writes wait
GRADIENTS = np.full((1 << 18, 16), 0.01, np.float32)


@contextmanager
def job_with(rows: int, num_workers: int = 0, **settings: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(processes, members by name, a connected client) of a job whose table has so many rows."""
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        members = processes.start_cluster(NUM_PS, num_workers, **settings)
        with connect(
            model_dir=str(processes.model_dir), timeout_s=300, connect_timeout_s=100
        ) as cluster:
            cluster.create_tables(TABLE)
            for begin in range(0, rows, GRADIENTS.shape[0]):
                ids = np.arange(begin, min(begin + GRADIENTS.shape[0], rows))
                cluster.push({"rows": (Ids(ids, distinct=True), GRADIENTS[: ids.size])})

            yield processes, members, cluster


def train_until(cluster: Any, rows: int, is_over: Any) -> np.ndarray:
    """Pull and push random rows; the seconds of each step."""
    rng = np.random.default_rng(1)
    seconds = []
    while not is_over():
        ids = np.unique(rng.integers(0, rows, STEP_IDS))
        began = time.perf_counter()
        cluster.pull({"rows": ids})
        cluster.push({"rows": (ids, GRADIENTS[: ids.size])})
        seconds.append(time.perf_counter() - began)

    return np.array(seconds)


def report_steps(case: str, seconds: np.ndarray, **conditions: Any) -> None:
    conditions |= {"rows": ROWS, "steps": seconds.size}
    report(f"{case}_speed", seconds.size / seconds.sum(), "steps/s", **conditions)
    report(f"{case}_p999", np.quantile(seconds, 0.999), "s", worst=seconds.max(), **conditions)


def measure_training() -> None:
    with job_with(ROWS, increment_every_s=0) as (_, _, cluster):
        cluster.controller.save()  # the first one makes folders and compiles kernels
        end_s = time.monotonic() + QUIET_S
        quiet = train_until(cluster, ROWS, lambda: time.monotonic() > end_s)

        saves: list[Any] = []

        def save() -> None:
            for _ in range(3):
                saves.append(cluster.controller.save())

        saving = threading.Thread(target=save)
        saving.start()
        busy = train_until(cluster, ROWS, lambda: not saving.is_alive())
        saving.join()

    save_s = sum(each.seconds for each in saves)
    report_steps("checkpoint_training_alone", quiet)
    report_steps("checkpoint_training_during_save", busy, saves=len(saves), save_s=save_s)
    kept = np.mean(quiet) / np.mean(busy)
    report("checkpoint_training_kept", kept, "share", rows=ROWS)
    measure_stall()


def measure_stall() -> None:
    """Steps on a hundredth of the rows, alone and beside increments.

    So few that no full save takes the place of the increments.
    """
    touched = ROWS // 100
    with job_with(ROWS, increment_every_s=INCREMENT_EVERY_S) as (processes, _, cluster):
        cluster.create_variables(VariableConfig("dense", np.zeros(DENSE_FLOATS, np.float32)))
        end_s = time.monotonic() + QUIET_S
        quiet = train_until(cluster, touched, lambda: time.monotonic() > end_s)
        cluster.controller.save()  # there is no increment before it
        first = newest_increment(processes) + 1  # it may be under way
        last = first + NUM_INCREMENTS
        train_until(cluster, touched, lambda: newest_increment(processes) >= first)
        busy = train_until(cluster, touched, lambda: newest_increment(processes) >= last)

    report_steps("checkpoint_training_without_increments", quiet, touched=touched)
    conditions = {"touched": touched, "dense_floats": DENSE_FLOATS}
    conditions |= {"increments": NUM_INCREMENTS, "every_s": INCREMENT_EVERY_S}
    report_steps("checkpoint_training_beside_increments", busy, **conditions)


def newest_increment(processes: Any) -> int:
    """Its number; 0 without one."""
    folders = processes.model_dir.glob("increments/*/0*")
    return max((int(folder.name) for folder in folders), default=0)


def measure_kill() -> None:
    with job_with(KILL_ROWS, increment_every_s=10) as (processes, members, cluster):
        cluster.controller.save()
        job = processes.job()
        ids = np.random.default_rng(2).permutation(KILL_ROWS)[: KILL_ROWS // 100]
        gradients = np.full((ids.size, 16), 0.01, np.float32)
        before = len(list(processes.model_dir.glob("increments/*/0*")))
        cluster.push({"rows": (ids, gradients)})
        wait_until(
            lambda: len(list(processes.model_dir.glob("increments/*/0*"))) > before,
            what="an increment",
        )

        step = job.status().global_step
        began = time.perf_counter()
        members["ps-1"].kill()
        processes.start_member("ps", 1)
        cluster.push({"rows": (ids, gradients)})
        seconds = time.perf_counter() - began
        restored = job.status().members[1].restored
        assert job.status().global_step >= step
        report(
            "checkpoint_kill_to_push",
            seconds,
            "s",
            rows=KILL_ROWS,
            restored_rows=restored.rows,
            restore_s=restored.seconds,
            increments=restored.increments,
        )

    measure_loss()


class Pushes:
    """A client that adds 1 to the same rows as fast as it can, and notes when each was acknowledged.

    So the value of a row is how many pushes its server has of those that were acknowledged.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._ids = np.arange(1000)
        self._gradients = np.full((self._ids.size, 1), -1, np.float32)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged_at: list[float] = []
        self.unknown = 0
        cluster.create_tables(TableConfig("counts", (Segment(1, Zeros(), Sgd(1.0)),)))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._cluster.push({"counts": (self._ids, self._gradients)})
                self.acknowledged_at.append(time.time())
            except OutcomeUnknown:  # under way when the ps died: the other ps has its part
                self.unknown += 1

    def held_by(self, job: Any) -> list[np.ndarray]:
        """By server, how many of the pushes its rows have."""
        values = self._cluster.pull({"counts": self._ids}).rows["counts"][:, 0]
        owners = routing_of(job).owner_of(self._ids)
        return [np.unique(values[owners == index]) for index in range(NUM_PS)]


def measure_loss() -> None:
    """Pushes without a pause, and kill -9 of a ps half-way between two increments."""
    settings = {"increment_every_s": LOSS_EVERY_S, "suspect_s": 1}
    with job_with(KILL_ROWS, num_workers=1, **settings) as parts:
        processes, members, cluster = parts
        pushes = Pushes(cluster)
        cluster.controller.save()
        job = processes.job()
        pushes.start()
        seen = newest_increment(processes)
        wait_until(lambda: newest_increment(processes) >= seen + 2, 300, what="two increments")
        time.sleep(LOSS_EVERY_S / 2)

        before = job.status()
        killed_at = time.time()
        members["ps-1"].kill()
        processes.start_member("ps", 1)
        wait_until(lambda: job.status().epoch > before.epoch, 300, what="a map with the new ps")
        wait_until(lambda: job.status().global_step > before.global_step, 300, what="the next step")
        pushes.stop()

        acknowledged = len(pushes.acknowledged_at)
        (kept,), (held,) = pushes.held_by(job)
        lost = round(acknowledged - held)
        before_kill = sum(at <= killed_at for at in pushes.acknowledged_at)
        oldest_lost = max(0, before_kill - lost)
        lost_s = killed_at - pushes.acknowledged_at[oldest_lost] if lost else 0.0
        report(
            "checkpoint_kill_lost",
            lost_s,
            "s",
            rows=KILL_ROWS,
            increment_every_s=LOSS_EVERY_S,
            pushes=acknowledged,
            lost_pushes=lost,
            other_ps_lost=max(0, round(acknowledged - kept)),
            steps_after=job.status().global_step - before.global_step,
        )
        assert acknowledged <= kept <= acknowledged + pushes.unknown, "the other ps has its rows"

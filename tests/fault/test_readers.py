"""Kill -9 of workers and of whole jobs that read files or a topic: no example is lost.

The ledger is a table: row n counts how often example n was trained. A worker reports its cursor
about once a second; examples between the last report and the kill are trained again, and no others.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megalith.client import connect
from support import ledger, ledger_task
from support.kafka import mock_broker
from support.processes import Processes
from support.waiting import wait_until

EXAMPLES = 300_000
BATCH = 500


def write_files(folder, examples=EXAMPLES):
    folder.mkdir()
    order = np.random.default_rng(1).permutation(examples)
    for number, part in enumerate(np.array_split(order, 20)):
        pq.write_table(pa.table({"n": part}), folder / f"{number:02d}.parquet", row_group_size=1000)
    return str(folder / "*.parquet")


@pytest.fixture(
    params=["parquet", pytest.param("numbered", marks=pytest.mark.long), "kafka"],
)
def data(request, tmp_path):
    """Options of the ledger: files as they come, files by number (the default of `ctr`), a topic."""
    if request.param != "kafka":
        yield {"data": write_files(tmp_path / "data"), "is_numbered": request.param == "numbered"}
        return

    with mock_broker() as broker:
        order = np.random.default_rng(1).permutation(EXAMPLES).tolist()
        broker.send("ledger", [b'{"n": %d}' % n for n in order])
        yield {"data": broker.url("ledger")}


class Job:
    def __init__(self, processes, data, num_workers=2, examples=EXAMPLES):
        self.processes = processes
        self._options = json.dumps(data | {"pause_s": 0.01})
        self._num_workers = num_workers
        self._examples = examples

    def start(self, **controller):
        processes = self.processes
        members = {
            "controller": processes.start_controller(
                num_ps=1,
                num_workers=self._num_workers,
                stay_up=True,  # the ledger is read after the job has ended, from the ps
                suspect_s=1,
                **controller,
            ),
            "ps-0": processes.start_member("ps", 0, stay_up=True),
        }
        for index in range(self._num_workers):
            members[f"worker-{index}"] = self.start_worker(index)
        return members

    def start_worker(self, index):
        return self.processes.start_member(
            "worker",
            index,
            task=ledger_task.path(),
            batch_size=BATCH,
            task_options=self._options,
            retry_wait_s=0.2,
        )

    def examples(self):
        return sum(member.examples for member in self.processes.job().status().members)

    def counts(self):
        """How often each example was trained, once the job has trained all of them."""
        with connect(model_dir=str(self.processes.model_dir)) as cluster:
            ids = np.arange(self._examples)
            parts = [cluster.pull({"trained": part}).rows["trained"] for part in np.split(ids, 10)]
        return np.concatenate(parts)[:, 0]


def check(counts, most_repeated):
    """Nothing is lost; gives back how many examples were trained again."""
    missing = int((counts < 1).sum())
    repeated = int((counts - 1).sum())
    print(f"ledger: {missing} of {counts.size} lost, {repeated} trained again, {most_repeated=}")
    assert missing == 0
    assert 0 <= repeated <= most_repeated
    return repeated


def wait_for_examples(job, count):
    return wait_until(lambda: job.examples() >= count, 120, what=f"{count} examples are trained")


def all_trained(job):
    counts = job.counts()
    return (counts,) if counts.min() >= 1 else None


@pytest.mark.parametrize("victim", [1, 0], ids=["worker", "chief"])
def test_a_killed_worker_loses_no_example(tmp_path, data, victim):
    with Processes(tmp_path) as processes:
        job = Job(processes, data)
        members = job.start()
        wait_for_examples(job, 40_000)
        members[f"worker-{victim}"].kill()
        unreported = ledger.unreported(processes, victim)
        job.start_worker(victim)

        (counts,) = wait_until(lambda: all_trained(job), 150, what="all examples are trained")
        assert check(counts, unreported) == unreported


def test_a_job_that_is_killed_whole_goes_on_with_its_checkpoint(tmp_path, data):
    with Processes(tmp_path) as processes:
        job = Job(processes, data)
        members = job.start(increment_every_s=0)
        wait_for_examples(job, 60_000)
        reported = sum(ledger.reported_by_worker(processes))
        saved = processes.job().save()
        most_in_rows = sum(ledger.done_by_worker(processes))
        assert saved.rows > 50_000
        wait_for_examples(job, 90_000)
        for member in members.values():
            member.kill()

        job.start()
        (counts,) = wait_until(lambda: all_trained(job), 150, what="all examples are trained")
        # Workers train on during a save: rows may be newer than the cursors of the last reports.
        check(counts, most_in_rows - reported)


def test_a_killed_worker_that_reads_files_by_number_loses_no_example(tmp_path):
    """The default of `megalith train ctr`, with fewer examples than the long tests."""
    examples = 60_000
    data = {"data": write_files(tmp_path / "data", examples), "is_numbered": True}
    with Processes(tmp_path) as processes:
        job = Job(processes, data, examples=examples)
        members = job.start()
        wait_for_examples(job, 5_000)
        members["worker-1"].kill()
        unreported = ledger.unreported(processes, 1)
        job.start_worker(1)

        (counts,) = wait_until(lambda: all_trained(job), 60, what="all examples are trained")
        assert check(counts, unreported) == unreported

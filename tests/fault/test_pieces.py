"""Input that the controller hands out, with processes that die: no example is lost.

The ledger is a table: row n counts how often example n was trained, and the chief reads it at the
end. A worker reports about once a second how far it is with its pieces; what it trained after its
last report is trained again by whoever gets them.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import ledger, ledger_task
from support.processes import Processes
from support.waiting import wait_until

EXAMPLES = 300_000
ROW_GROUP = 1000
BATCH = 500


def write_files(folder, examples=EXAMPLES, num_files=20, first=0):
    folder.mkdir(exist_ok=True)
    order = first + np.random.default_rng(1).permutation(examples)
    for number, part in enumerate(np.array_split(order, num_files)):
        path = folder / f"{first:06d}-{number:02d}.parquet"
        pq.write_table(pa.table({"n": part}), path, row_group_size=ROW_GROUP)
    return str(folder / "*.parquet")


class Job:
    heartbeat_s = 1  # of workers: between two reports

    def __init__(self, processes, data, num_workers=2, **options):
        self.processes = processes
        self._options = {"data": data, "pause_s": 0.01, "examples": EXAMPLES} | options
        self._num_workers = num_workers

    def start(self, **controller):
        self.members = {
            "controller": self.start_controller(**controller),
            "ps-0": self.processes.start_member("ps", 0),
        }
        for index in range(self._num_workers):
            self.start_worker(index)

    def start_controller(self, **settings):
        patience = {"suspect_s": 1, "lost_worker_s": 600}
        return self.processes.start_controller(
            num_ps=1, num_workers=self._num_workers, stay_up="true", **patience, **settings
        )

    def start_worker(self, index, **options):
        self.members[f"worker-{index}"] = self.processes.start_member(
            "worker",
            index,
            task=ledger_task.path(),
            batch_size=BATCH,
            sharding="dynamic",
            task_options=json.dumps(self._options | options),
            retry_wait_s=0.2,
            heartbeat_s=self.heartbeat_s,
        )

    def kill(self, name):
        self.members[name].kill()

    def kill_worker(self, index):
        """Gives back how many examples it had trained and not reported."""
        self.kill(f"worker-{index}")
        return ledger.unreported(self.processes, index)

    def status(self):
        return self.processes.job().status()

    def wait_for_pieces(self, count):
        def is_reached():
            pieces = self.status().pieces
            return pieces is not None and pieces.done >= count

        wait_until(is_reached, 120, what=f"{count} pieces are done")

    def wait_for_ledger(self, timeout_s=170):
        """(lost, repeated) once the job has ended."""

        def ended():
            status = self.status()
            return status if status.outcome else None

        status = wait_until(ended, timeout_s, what="the job ends")
        assert status.outcome == "succeeded", status.reason
        assert status.pieces.held == status.pieces.left == 0
        lost = status.results["lost"]
        repeated = status.results["repeated"]
        print(f"ledger: {lost:.0f} lost, {repeated:.0f} trained again, {status.pieces}")
        return lost, repeated


def check_fault(job, most_repeated):
    """After a fault nothing is lost, and what is trained again was not reported."""
    lost, repeated = job.wait_for_ledger()
    print(f"at most {most_repeated} could be trained again")
    assert lost == 0
    assert repeated <= most_repeated


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("pieces") / "data")


def test_others_take_over_the_pieces_of_a_worker_that_stays_dead(tmp_path):
    data = write_files(tmp_path / "data", 60_000, 4)
    with Processes(tmp_path) as processes:
        job = Job(processes, data, examples=60_000)
        job.start()
        job.wait_for_pieces(5)
        unreported = job.kill_worker(1)
        check_fault(job, unreported)
        status = job.status()
        assert status.pieces.returned > 0
        assert not status.losses, "what others have trained is not lost"


def test_steps_that_a_killed_worker_had_not_reported_count(tmp_path):
    """Others train those rows again, in steps of their own."""
    examples = 120_000
    data = write_files(tmp_path / "data", examples, 4)
    with Processes(tmp_path) as processes:
        job = Job(processes, data, examples=examples, pause_s=0.03)
        job.heartbeat_s = 60  # so that workers report what decides something, and when asked
        job.start()
        wait_until(lambda: sum(ledger.done_by_worker(processes)) > 20 * BATCH, 120)
        processes.job().save()  # asks for reports
        before = ledger.done_by_worker(processes)[1]
        wait_until(lambda: ledger.done_by_worker(processes)[1] > before + 10 * BATCH, 60)
        unreported = job.kill_worker(1)
        assert unreported > 5 * BATCH, "the kill was felt"
        job.start_worker(1)

        lost, repeated = job.wait_for_ledger()
        assert lost == 0
        status = job.status()
        assert status.global_step * BATCH == examples + repeated
        workers = [member for member in status.members if member.role == "worker"]
        counted = sum(worker.examples_before + worker.examples for worker in workers)
        assert counted == examples + repeated - unreported


@pytest.mark.long
def test_without_faults_each_example_is_trained_once_in_each_of_two_epochs(tmp_path, data):
    with Processes(tmp_path) as processes:
        job = Job(processes, data, pause_s=0.0, epochs=2)
        job.start()
        assert job.wait_for_ledger() == (0, 0)
        status = job.status()
        assert status.pieces.done == status.pieces.total == 2 * EXAMPLES // ROW_GROUP
        assert status.pieces.returned == 0


@pytest.mark.long
@pytest.mark.parametrize("victim", [1, 0], ids=["worker", "chief"])
def test_a_killed_worker_that_is_started_again_loses_no_example(tmp_path, data, victim):
    with Processes(tmp_path) as processes:
        job = Job(processes, data)
        job.start()
        job.wait_for_pieces(40)
        unreported = job.kill_worker(victim)
        job.start_worker(victim)
        check_fault(job, unreported)
        assert job.status().pieces.returned > 0


@pytest.mark.long
@pytest.mark.parametrize("num_workers", [2, 3])
def test_a_job_that_is_killed_whole_goes_on_with_any_number_of_workers(tmp_path, data, num_workers):
    with Processes(tmp_path) as processes:
        job = Job(processes, data)
        job.start(increment_every_s=0)
        job.wait_for_pieces(60)
        reported = sum(ledger.reported_by_worker(processes))
        processes.job().save()
        most_in_rows = sum(ledger.done_by_worker(processes))
        job.wait_for_pieces(90)
        for name in job.members:
            job.kill(name)

        again = Job(processes, data, num_workers)
        again.start()
        again.wait_for_pieces(60)
        # Workers train on during a save: rows may be newer than the cursors of the last reports.
        check_fault(again, most_in_rows - reported)


@pytest.mark.long
def test_a_killed_controller_forgets_no_piece(tmp_path, data):
    with Processes(tmp_path) as processes:
        job = Job(processes, data)
        job.start()
        job.wait_for_pieces(40)
        job.kill("controller")
        job.members["controller"] = job.start_controller()
        # Nobody else was lost: what workers hold and have said counts on.
        assert job.wait_for_ledger() == (0, 0)


@pytest.mark.long
def test_a_slow_worker_gets_fewer_pieces(tmp_path, data):
    with Processes(tmp_path) as processes:
        job = Job(processes, data, num_workers=0)
        job._num_workers = 2
        job.members = {"controller": job.start_controller()}
        job.members["ps-0"] = processes.start_member("ps", 0)
        job.start_worker(0)
        job.start_worker(1, pause_s=0.1)
        assert job.wait_for_ledger() == (0, 0)
        fast, slow = (member.examples for member in job.status().members if member.role == "worker")
        print(f"examples: fast {fast}, slow {slow}")
        assert fast + slow == EXAMPLES
        assert fast > 2 * slow


@pytest.mark.long
def test_more_workers_than_pieces_end_together(tmp_path):
    data = write_files(tmp_path / "data", 2 * ROW_GROUP, 1)
    with Processes(tmp_path) as processes:
        job = Job(processes, data, num_workers=4, examples=2 * ROW_GROUP)
        job.start()
        assert job.wait_for_ledger() == (0, 0)
        for index in range(4):
            assert job.members[f"worker-{index}"].wait() == 0


@pytest.mark.long
def test_files_that_appear_are_new_pieces_of_a_job_that_follows(tmp_path):
    folder = tmp_path / "data"
    data = write_files(folder, 100_000, 10)
    with Processes(tmp_path) as processes:
        job = Job(processes, data, examples=200_000, follow_s=10.0)
        job.start()
        job.wait_for_pieces(4)
        aside = tmp_path / "aside"
        write_files(aside, 100_000, 10, first=100_000)
        for path in sorted(aside.iterdir()):
            path.rename(folder / path.name)
        job.wait_for_pieces(12)
        unreported = job.kill_worker(1)
        job.start_worker(1)
        check_fault(job, unreported)
        assert job.status().pieces.total == 20


@pytest.mark.long
def test_a_damaged_row_group_ends_the_worker_that_reads_it_and_is_named(tmp_path):
    folder = tmp_path / "data"
    data = write_files(folder, 20_000, 4)
    victim = sorted(folder.iterdir())[2]
    content = bytearray(victim.read_bytes())
    start = pq.read_metadata(victim).row_group(3).column(0).data_page_offset
    content[start : start + 64] = b"\xff" * 64
    victim.write_bytes(content)
    with Processes(tmp_path) as processes:
        job = Job(processes, data, num_workers=1, examples=20_000)
        job.start()
        assert job.members["worker-0"].wait(120) == 1
        assert f"{victim}, row group 3 cannot be read" in job.members["worker-0"].output()

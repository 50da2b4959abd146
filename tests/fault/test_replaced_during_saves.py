"""A ps that is killed while the job trains, and replaced while a save waits for it."""

import base64
import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.directory.increments import read_chain
from megalith.checkpoint.inspection.checkpoint_rows import tables_of
from megalith.errors import NotReady
from support import counted_task
from support.processes import Processes
from support.routes import routing_of
from support.waiting import wait_until

ROWS = 300_000
BATCH = 500


def start(processes):
    settings = {"num_ps": 2, "num_workers": 1, "increment_every_s": 0, "stay_up": "true"}
    members = {"controller": processes.start_controller(**settings)}
    for index in range(2):
        members[f"ps-{index}"] = processes.start_member("ps", index)

    members["worker-0"] = processes.start_member(
        "worker",
        0,
        task=counted_task.path(),
        batch_size=BATCH,
        num_examples=ROWS,
        task_options=json.dumps({"pause_s": 0.01}),
    )
    return members


def wait_for_step(job, step):
    wait_until(lambda: job.training_status() >= step, 100, what=f"step {step}")


class WaitingSave:
    """A save on a thread of its own. On a busy machine a ps may be away for longer than it waits."""

    def __init__(self, job):
        self._job = job
        self.saved = None
        self.refused = []
        self._thread = threading.Thread(target=self._save)
        self._thread.start()

    def _save(self):
        while self.saved is None and len(self.refused) < 10:
            try:
                self.saved = self._job.save(timeout_s=60)
            except NotReady as error:
                self.refused.append(str(error))

    def result(self):
        self._thread.join(200)
        assert self.saved is not None, self.refused
        return self.saved


def trained_in(path):
    """How often each example was trained, by the rows of a checkpoint."""
    trained = np.zeros(ROWS)
    for batch in tables_of(read_chain(Path(path)))["trained"].batches():
        trained[batch.ids] = batch.embeddings[:, 0]

    return trained


def cursor_in(path):
    """How many batches the worker had read."""
    manifest = read_chain(Path(path)).last
    (text,) = manifest.cursors
    said = re.search(rb"batches=(\d+)", base64.b64decode(text))
    return int(said[1]), manifest.repeated_batches


@pytest.mark.long
def test_a_save_that_waits_for_a_replaced_ps_has_the_rows_and_the_cursors_of_one_moment(tmp_path):
    batch_of = np.arange(ROWS) // BATCH
    with Processes(tmp_path) as processes:
        members = start(processes)
        job = processes.job()
        wait_for_step(job, 40)
        first = job.save(hold=True)
        wait_for_step(job, first.step + 60)
        is_of_killed = routing_of(job).owner_of(np.arange(ROWS)) == 1

        reported = job.training_status()
        members["ps-1"].kill()
        saving = WaitingSave(job)
        processes.start_member("ps", 1)
        saved = saving.result()
        restored = job.status().members[1].restored
        wait_for_step(job, saved.step + 20)
        for process in members.values():
            process.kill()

    begun, repeated = cursor_in(first.path)
    assert (begun, repeated) == (first.step, 0)
    assert restored.path == first.path
    position, repeated = cursor_in(saved.path)
    print(f"{len(saving.refused)} tries were refused; {repeated} batches are trained again")
    assert reported <= saved.step <= position

    # The ps that lived has each batch before the cursor once. Of what is trained while the files
    # are written it may have a part, and of a step that was not reported yet.
    trained = trained_in(saved.path)
    before = batch_of < position
    np.testing.assert_array_equal(trained[before & ~is_of_killed], 1)
    assert trained.max() == 1
    assert batch_of[trained > 0].max() <= position + repeated

    # The replacement has what the checkpoint before had, and all that was trained since it came.
    lost = np.unique(batch_of[before & is_of_killed & (trained == 0)])
    assert lost.size >= reported - begun
    np.testing.assert_array_equal(lost, np.arange(begun, lost[-1] + 1))
    came_back = before & is_of_killed & ~np.isin(batch_of, lost)
    np.testing.assert_array_equal(trained[came_back], 1)
    assert saved.rows == np.count_nonzero(trained)

    with Processes(tmp_path) as processes:
        start(processes)
        job = processes.job()
        status = wait_until(lambda: (now := job.status()).outcome and now, 170, what="the end")

    assert status.outcome == "succeeded", status.reason
    assert "goes on where it was" in status.input
    np.testing.assert_array_equal(trained_in(status.last_checkpoint), trained + ~before)

"""kill -9 of a parameter server that holds half of 500,000 rows, in a job that trains."""

import re

import numpy as np

from megalith.client import connect
from support import at_size
from support.processes import Processes
from support.waiting import wait_until

ROWS = 500_000


def test_every_row_of_a_killed_ps_is_back_with_its_replacement(tmp_path):
    ids = at_size.ids_in("random", ROWS)
    first = at_size.gradients_of(ROWS)
    second = first[::-1].copy()
    with Processes(tmp_path) as processes:
        members = processes.start_cluster(num_ps=2, num_workers=1)
        job = processes.job()
        wait_until(lambda: job.status().phase == "running")
        with connect(model_dir=str(processes.model_dir), timeout_s=120) as cluster:
            cluster.create_tables(at_size.TABLE)
            at_size.push(cluster, ids, first)
            saved = job.save()
            before = at_size.pull(cluster, ids)
            np.testing.assert_allclose(before, at_size.values_after(first), rtol=1e-5)
            members["ps-1"].kill()
            wait_until(lambda: job.status().phase == "forming")
            replacement = processes.start_member("ps", 1)
            wait_until(lambda: job.status().phase == "running")
            np.testing.assert_array_equal(at_size.pull(cluster, ids), before)
            at_size.push(cluster, ids, second)
            np.testing.assert_allclose(
                at_size.pull(cluster, ids), at_size.values_after(first, second), rtol=1e-5
            )
            step = job.status().global_step
            wait_until(lambda: job.status().global_step > step)
        restored = re.search(
            r"restored path=(\S+) rows=(\d+) expired=0 left_out=0", replacement.output()
        )
        assert restored[1] == saved.path
        assert (
            int(restored[2]) > ROWS // 3
        )  # its half of the known rows, and those of the training task

"""kill -9 of a parameter server that holds half of many rows: a replacement, and one that stood
by."""

import numpy as np
import pytest

from megalith.client import connect
from support import at_size
from support.processes import Processes
from support.waiting import wait_until

ROWS = 500_000
TAKEOVER_ROWS = 300_000


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
            processes.start_member("ps", 1)
            wait_until(lambda: job.status().phase == "running")
            np.testing.assert_array_equal(at_size.pull(cluster, ids), before)
            at_size.push(cluster, ids, second)
            np.testing.assert_allclose(
                at_size.pull(cluster, ids), at_size.values_after(first, second), rtol=1e-5
            )
            step = job.status().global_step
            wait_until(lambda: job.status().global_step > step)
        restored = job.status().members[1].restored
        assert (restored.path, restored.expired, restored.left_out) == (saved.path, 0, 0)
        # Its half of the known rows, and those of the training task
        assert restored.rows > ROWS // 3


@pytest.mark.long
def test_every_row_of_a_killed_ps_is_back_with_the_one_that_stood_by(tmp_path):
    """Sorted ids, of which each table index has seen long runs."""
    ids = at_size.ids_in("sorted", TAKEOVER_ROWS)
    first = at_size.gradients_of(TAKEOVER_ROWS)
    second = first[::-1].copy()
    with Processes(tmp_path) as processes:
        processes.start_controller(
            num_ps=2, num_redundant_ps=1, num_workers=0, suspect_s=2, takeover_s=1, silence_s=60
        )
        servers = [processes.start_member("ps", index) for index in range(3)]
        job = processes.job()
        wait_until(lambda: job.status().phase == "running")
        with connect(model_dir=str(processes.model_dir), timeout_s=120) as cluster:
            cluster.create_tables(at_size.TABLE)
            at_size.push(cluster, ids, first)
            saved = job.save()
            assert saved.rows == TAKEOVER_ROWS
            before = at_size.pull(cluster, ids)
            status = job.status()
            index_by_shard = {each.shard: each.index for each in status.candidates}
            spare = index_by_shard[None]
            servers[index_by_shard[1]].kill()
            wait_until(lambda: job.status().epoch > status.epoch, what="a map with the spare ps")
            np.testing.assert_array_equal(at_size.pull(cluster, ids), before)
            wait_until(
                lambda: sum(each.rows for each in job.status().members) == TAKEOVER_ROWS,
                what="as many rows as before",
            )
            at_size.push(cluster, ids, second)
            np.testing.assert_allclose(
                at_size.pull(cluster, ids), at_size.values_after(first, second), rtol=1e-5
            )
            again = job.save()
            assert again.rows == TAKEOVER_ROWS
        candidates = job.status().candidates
        assert {each.shard: each.index for each in candidates}[1] == spare
        assert job.status().members[1].restored.path == saved.path

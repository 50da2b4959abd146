"""A task without any table on a cluster: variables alone are trained, saved and restored."""

import numpy as np
import pytest

from support.servers import Servers
from support.waiting import wait_until

TASK = {"task": "support.line_task:LineTask", "batch_size": 100}


def train(servers, **options):
    servers.start_all(**TASK, **options)
    job = servers.connect().controller
    status = wait_until(lambda: (now := job.status()).outcome and now, 100)
    assert status.outcome == "succeeded", status.reason
    return status


@pytest.mark.parametrize("sharding", ["static", "dynamic"])
def test_two_workers_train_variables_alone(tmp_path, sharding):
    with Servers(tmp_path, num_ps=2, num_workers=2) as servers:
        status = train(servers, num_examples=20_000, sharding=sharding)
        pulled = servers.connect().pull({}, ["weights", "steps"]).variables
        assert status.results["auc"] > 0.999
        assert status.global_step == pulled["steps"][0] == 200, "each batch is pushed once"
        first, second = pulled["weights"]
        assert first > 2
        assert second == pytest.approx(-first, rel=0.1)
        assert [member.rows for member in status.members if member.role == "ps"] == [0, 0]


def test_a_job_that_is_started_again_goes_on_with_its_variables(tmp_path):
    with Servers(tmp_path, num_ps=2, num_workers=1) as servers:
        train(servers, num_examples=5_000)
        before = servers.connect().pull({}, ["weights"]).variables["weights"]
        saved = servers.connect().controller.save(hold=True)
        assert (saved.rows, saved.step) == (0, 50)

    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        servers.start_controller()
        servers.start_ps(0)
        cluster = servers.connect()
        wait_until(lambda: cluster.controller.status().members[0].is_ready, 60)
        after = cluster.pull({}, ["weights"]).variables["weights"]
        np.testing.assert_array_equal(after, before)
        servers.start_worker(0, **TASK, num_examples=8_000)
        status = wait_until(lambda: (now := cluster.controller.status()).outcome and now, 100)
        assert (status.outcome, status.global_step) == ("succeeded", 80)
        assert cluster.pull({}, ["steps"]).variables["steps"] == 80

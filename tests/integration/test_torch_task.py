"""A torch module as the model of a job: two workers train one model, and a restart goes on."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs: pip install torch==2.13.0")

from support.servers import Servers
from support.waiting import wait_until

TASK = {"task": "support.torch_liked_task:TorchLikedTask", "batch_size": 256}


def train(model_dir, num_workers, num_examples):
    with Servers(model_dir, num_ps=2, num_workers=num_workers) as servers:
        servers.start_all(**TASK, num_examples=num_examples)
        cluster = servers.connect()
        status = wait_until(lambda: (now := cluster.controller.status()).outcome and now, 200)
        assert status.outcome == "succeeded", status.reason
        return status


def test_after_a_restart_it_goes_on_with_the_same_parameters(tmp_path):
    names = ["hidden.weight", "out.weight"]
    with Servers(tmp_path, num_ps=2, num_workers=2) as servers:
        servers.start_all(**TASK, num_examples=0)
        cluster = servers.connect()
        wait_until(lambda: cluster.controller.training_status() > 50, 100)
        saved = cluster.controller.save(hold=True, is_last=True)
        before = cluster.pull({}, names).variables

    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        servers.start_controller()
        servers.start_ps(0)
        cluster = servers.connect()
        servers.start_worker(1, **TASK, num_examples=0)  # without the chief nothing is trained
        wait_until(lambda: cluster.controller.status().members[0].is_ready, 60)
        after = cluster.pull({}, names).variables
        for name in names:
            np.testing.assert_array_equal(after[name], before[name])
        servers.start_worker(0, **TASK, num_examples=0)
        wait_until(lambda: cluster.controller.training_status() > saved.step + 20, 100)
        moved = cluster.pull({}, names).variables
        # Adam at a rate of 0.003 moves no parameter farther than that in a step, so these are not
        # parameters that were drawn anew.
        steps = cluster.controller.training_status() - saved.step
        assert 0 < np.abs(moved["out.weight"] - before["out.weight"]).max() < 0.01 * steps


@pytest.mark.long
def test_two_workers_reach_the_auc_of_one(tmp_path):
    alone = train(tmp_path / "alone", 1, 500_000)
    together = train(tmp_path / "together", 2, 500_000)
    assert alone.global_step == together.global_step == 1953
    assert alone.results["auc"] > 0.77
    assert abs(alone.results["auc"] - together.results["auc"]) < 0.003

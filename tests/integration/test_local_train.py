"""Training in one process and in a cluster are the same training."""

import numpy as np
import pytest

import megalith.client as mg
from megalith.local import LocalModel, local_train
from megalith.worker.config import OverlapSettings, TaskSettings, WorkerConfig
from megalith.worker.server import WorkerServer
from support.liked_task import LikedTask
from support.servers import Servers
from support.turns_task import TABLE, TakesTurns
from support.waiting import wait_until


def train_in_a_cluster(model_dir, **task):
    """One worker that waits for each push; its status once the job is over."""
    with Servers(model_dir, num_ps=2, num_workers=1) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index)
        config = WorkerConfig(
            index=0,
            overlap=OverlapSettings(staleness=0),
            task=TaskSettings(**task),
            membership=servers.membership(),
        )
        servers.start("worker-0", lambda request: WorkerServer(config, request))
        job = servers.connect().controller
        return wait_until(lambda: (now := job.status()).outcome and now, 100)


def test_one_worker_without_staleness_has_the_losses_of_a_local_training(tmp_path):
    losses = tmp_path / "losses"
    status = train_in_a_cluster(
        tmp_path / "model",
        task="support.liked_task:NotedLosses",
        batch_size=64,
        num_examples=6400,
        task_options=f'{{"losses": "{losses}"}}',
    )
    assert status.outcome == "succeeded", status.reason
    in_cluster = [float(line) for line in losses.read_text().split()]
    local = local_train(LikedTask(batch_size=64, num_examples=6400))
    assert len(in_cluster) == 100
    np.testing.assert_allclose(local.losses, in_cluster, rtol=0, atol=1e-6)
    assert status.results == pytest.approx(local.figures, abs=1e-6)


def test_a_worker_pushes_nothing_of_a_feature_without_a_gradient_in_a_shared_table(tmp_path):
    status = train_in_a_cluster(
        tmp_path,
        task="support.turns_task:TakesTurns",
        batch_size=64,
        num_examples=64 * 12,
    )
    assert status.outcome == "succeeded", status.reason
    task = TakesTurns()
    run = local_train(task, start_from=status.last_checkpoint, max_steps=1)
    assert run.losses == []
    task.check(task.found, run.model.rows_by_table()[TABLE])


def test_a_cluster_goes_on_from_a_local_checkpoint(tmp_path):
    whole = local_train(LikedTask())
    local_train(LikedTask(), model_dir=tmp_path, max_steps=60)
    losses = tmp_path / "losses"
    status = train_in_a_cluster(
        tmp_path,
        task="support.liked_task:NotedLosses",
        batch_size=64,
        num_examples=6400,
        task_options=f'{{"losses": "{losses}"}}',
    )
    assert status.global_step == 100
    in_cluster = [float(line) for line in losses.read_text().split()]
    np.testing.assert_allclose(whole.losses[60:], in_cluster, rtol=0, atol=1e-6)

    on = local_train(LikedTask(), model_dir=tmp_path)  # and back: there is nothing left to train
    assert on.losses == []
    assert on.figures == pytest.approx(status.results, abs=1e-6)


@pytest.mark.parametrize("skips_nonfinite", [False, True])
def test_an_id_that_a_batch_repeats_is_admitted_when_a_cluster_admits_it(tmp_path, skips_nonfinite):
    row = mg.Segment(2, mg.RandomUniform(-0.1, 0.1), mg.Adagrad(0.1))
    table = mg.TableConfig(
        "rare",
        (row,),
        admission=mg.AdmissionConfig(default_threshold=3),
        skip_nonfinite=skips_nonfinite,
    )
    local = LocalModel()
    local.create([table], [])
    rng = np.random.default_rng(4)
    wanted = np.arange(1500)
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index)
        cluster = servers.connect()
        cluster.create_tables(table)
        held = []
        for step in range(8):
            ids = rng.zipf(1.2, 2000) % wanted.size
            gradients = rng.normal(0, 1, (ids.size, 2)).astype(np.float32)
            if skips_nonfinite:
                gradients[rng.integers(0, ids.size, 20)] = np.nan

            cluster.push({"rare": (ids, gradients)})
            local.push({"rare": (mg.Ids(ids), gradients)}, {}, step=step)
            here, _ = local.read({"rare": wanted}, [])
            there = cluster.pull({"rare": wanted}).rows["rare"]
            np.testing.assert_array_equal(here["rare"], there)
            held.append(np.count_nonzero(there.any(axis=1)))

    assert held[:3] == [0, 0, 0]
    assert 0 < held[3] < held[-1] < wanted.size

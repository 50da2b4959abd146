"""Checkpoints on S3, as moto serves it, through servers and SDK."""

import numpy as np
import pytest

from megalith.checkpoint.directory import catalog, increments
from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.storage import probe
from megalith.checkpoint.storage.location import locate
from megalith.errors import SaveFailed
from megalith.runner.free_ports import free_ports
from support import at_size, object_stores
from support.proxy import FaultyProxy
from support.servers import Servers
from support.waiting import wait_until

ROWS = 300_000


@pytest.fixture(scope="module")
def s3():
    with object_stores.s3_server() as environment, object_stores.set_environment(environment):
        yield environment


@pytest.fixture
def checkpoint_dir(s3):
    return object_stores.new_folder("s3")


def cluster_on(servers):
    servers.start_all()
    return servers.connect()


def rows_restored(cluster):
    return sum(member.restored.rows for member in cluster.controller.status().members)


@pytest.mark.parametrize(
    ("order", "num_ps"), [("random", 3), pytest.param("sorted", 1, marks=pytest.mark.long)]
)
def test_a_save_of_two_servers_comes_back_whole_on_another_number(
    tmp_path, checkpoint_dir, order, num_ps
):
    ids = at_size.ids_in(order, ROWS)
    gradients = at_size.gradients_of(ROWS)
    with Servers(tmp_path, num_ps=2, checkpoint_dir=str(checkpoint_dir)) as servers:
        cluster = cluster_on(servers)
        cluster.create_tables(at_size.TABLE)
        at_size.push(cluster, ids, gradients)
        before = at_size.pull(cluster, ids)
        saved = cluster.controller.save()
        assert cluster.controller.status().last_checkpoint == saved.path

    assert saved.path == f"{checkpoint_dir}/model.ckpt-0"
    assert saved.rows == manifest.read(locate(saved.path)).rows == ROWS
    assert verify(locate(saved.path)).is_whole
    assert not list(tmp_path.glob("model.ckpt-*"))
    with Servers(tmp_path, num_ps=num_ps, checkpoint_dir=str(checkpoint_dir)) as servers:
        cluster = cluster_on(servers)
        np.testing.assert_array_equal(at_size.pull(cluster, ids), before)
        assert rows_restored(cluster) == ROWS
        at_size.push(cluster, ids, gradients)  # its accumulators came back too
        np.testing.assert_allclose(
            at_size.pull(cluster, ids), at_size.values_after(gradients, gradients), rtol=1e-5
        )
        assert locate(cluster.controller.save().path).name == "model.ckpt-r1-0"


def test_increments_go_to_the_store_and_come_back(tmp_path, checkpoint_dir):
    ids = np.arange(10_000)
    gradients = at_size.gradients_of(ids.size)
    settings = {"checkpoint_dir": str(checkpoint_dir), "increment_every_s": 0.3}
    with Servers(tmp_path, num_ps=2, **settings) as servers:
        cluster = cluster_on(servers)
        cluster.create_tables(at_size.TABLE)
        at_size.push(cluster, ids, gradients)
        base = locate(cluster.controller.save().path)
        for number in (1, 2):
            at_size.push(cluster, ids, gradients)
            wait_until(lambda: increments.read_chain(base).number >= number)  # noqa: B023

        wait_until(lambda: not cluster.controller.status().unsaved)
        before = at_size.pull(cluster, ids)

    assert verify(base).increments >= 2
    with Servers(tmp_path, num_ps=3, **settings) as servers:
        cluster = cluster_on(servers)
        np.testing.assert_array_equal(at_size.pull(cluster, ids), before)
        newest = locate(cluster.controller.save().path)
        wait_until(lambda: not (checkpoint_dir / increments.FOLDER).exists())
        assert catalog.latest(checkpoint_dir) == newest


def test_a_store_that_is_gone_fails_the_save_and_training_goes_on(
    tmp_path, s3, monkeypatch, checkpoint_dir
):
    host, _, port = s3["AWS_ENDPOINT_URL"].removeprefix("http://").partition(":")
    ids = np.arange(1000)
    gradients = at_size.gradients_of(ids.size)
    with Servers(tmp_path, num_ps=1, checkpoint_dir=str(checkpoint_dir)) as servers:
        (listen,) = free_ports(1, host)
        with FaultyProxy((host, listen), (host, int(port)), seed=0, cut=0, delay=0):
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{listen}")
            cluster = cluster_on(servers)
            cluster.create_tables(at_size.TABLE)
            at_size.push(cluster, ids, gradients)
            first = locate(cluster.controller.save().path)

        with pytest.raises(SaveFailed, match="the object store failed 4 times"):
            cluster.controller.save()

        at_size.push(cluster, ids, gradients)
        assert cluster.controller.status().phase == "running"
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3["AWS_ENDPOINT_URL"])
        assert catalog.latest(checkpoint_dir) == first
        assert verify(first).is_whole
        second = locate(cluster.controller.save().path)
        assert verify(second).is_whole

    assert catalog.latest(checkpoint_dir) == second


def test_a_model_of_another_storage_is_started_from_and_nothing_is_copied(tmp_path, checkpoint_dir):
    ids = np.arange(1000)
    with Servers(tmp_path / "a", num_ps=1) as servers:
        cluster = cluster_on(servers)
        cluster.create_tables(at_size.TABLE)
        at_size.push(cluster, ids, at_size.gradients_of(ids.size))
        before = at_size.pull(cluster, ids)
        exported = cluster.controller.save(str(checkpoint_dir)).path

    assert exported == f"{checkpoint_dir}/model.ckpt-0"
    settings = {"restore_dir": str(checkpoint_dir)}
    with Servers(tmp_path / "b", num_ps=2, **settings) as servers:
        cluster = cluster_on(servers)
        np.testing.assert_array_equal(at_size.pull(cluster, ids), before)
        assert cluster.controller.status().members[0].restored.path == exported
        own = cluster.controller.save().path

    assert locate(own).parent == tmp_path / "b"


def test_a_ps_that_does_not_see_the_storage_of_the_controller_ends_at_once(
    tmp_path, checkpoint_dir, monkeypatch
):
    monkeypatch.setattr(probe, "_APPEAR_S", 0.2)
    with Servers(tmp_path, num_ps=1, checkpoint_dir=str(checkpoint_dir)) as servers:
        servers.start_controller()
        for path in list(checkpoint_dir.glob(".storage-probe-*")):
            path.unlink()

        servers.start_ps(0)
        request = wait_until(lambda: servers.exits["ps-0"].status and servers.exits["ps-0"])
        assert request.status == 1
        assert "they do not see the same storage" in request.reason

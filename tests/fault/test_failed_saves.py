"""Saves that meet a full disk, a disk that may not be written, and kill -9: the last one stands."""

import contextlib
import os
import random
import subprocess
import threading
import time

import numpy as np
import pytest

from megalith.checkpoint import catalog, manifest
from megalith.client import connect
from megalith.control import Controller
from megalith.errors import MegalithError, NotReady, SaveFailed
from support import at_size
from support.processes import Processes
from support.servers import Servers
from support.waiting import wait_until

ROWS = 300_000


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a disk of 6 MB of its own."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only a user who may mount a disk can fill one")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextlib.contextmanager
def read_only(directory):
    """Nobody may write there, not even who may everything; who has a file open writes on."""
    subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(directory)], check=True)
    yield
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def verified(model_dir):
    """The newest checkpoint, after every file of it was compared with its manifest."""
    newest = catalog.latest(model_dir)
    content = manifest.read(newest)
    for file in content.files:
        manifest.verify(newest, file)
    return newest, content


def saves_under_way(model_dir):
    return [path.name for path in model_dir.glob("saving-*")]


def test_a_disk_that_is_full_or_read_only_is_named_and_the_last_checkpoint_stands(small_disk):
    ids = at_size.ids_in("random", ROWS)
    with Servers(small_disk, num_ps=2, num_workers=0) as servers:
        servers.start_all()
        cluster = servers.connect(timeout_s=120)
        cluster.create_tables(at_size.TABLE)
        at_size.push(cluster, ids[:1000], at_size.gradients_of(1000))
        saved = cluster.controller.save()

        at_size.push(cluster, ids, at_size.gradients_of(ROWS))
        with pytest.raises(SaveFailed, match=f"ps-.*no space left on the disk at {small_disk}"):
            cluster.controller.save()
        assert verified(small_disk)[1].rows == saved.rows == 1000
        assert saves_under_way(small_disk) == []

        with read_only(small_disk):
            with pytest.raises(SaveFailed, match=f"may not write into {small_disk}: .*Read-only"):
                cluster.controller.save()
            assert cluster.controller.status().phase == "running"

        subprocess.run(["mount", "-o", "remount,size=256m", str(small_disk)], check=True)
        assert cluster.controller.save().rows == ROWS
    assert verified(small_disk)[1].rows == ROWS


def test_a_save_while_a_ps_restores_is_refused_and_changes_nothing(tmp_path):
    with Servers(tmp_path, num_ps=2, num_workers=0) as servers:
        servers.start_controller()
        servers.start_ps(0)
        with contextlib.closing(Controller(None, str(tmp_path), 20.0)) as job:
            with pytest.raises(NotReady, match=r"cannot save: waiting for .*ps-1"):
                job.save()
            assert job.status().last_checkpoint == ""
    assert list(tmp_path.glob("model.ckpt-*")) == []


def start(processes):
    """A controller and two ps: (processes by name, a client of them)."""
    alive = {"controller": processes.start_controller(num_ps=2, num_workers=0)}
    for index in range(2):
        alive[f"ps-{index}"] = processes.start_member("ps", index)
    job = processes.job()
    wait_until(lambda: job.status().phase == "running", 100)
    return alive, job


def kill_during_a_save(tmp_path, seed):
    """Kill one process at a random moment of a save, then the others; start the job again."""
    chance = random.Random(f"failed-saves-{seed}")
    ids = at_size.ids_in("random", ROWS)
    first, second = at_size.gradients_of(ROWS), at_size.gradients_of(ROWS)[::-1].copy()
    with Processes(tmp_path) as processes:
        alive, job = start(processes)
        with connect(model_dir=str(processes.model_dir), timeout_s=100) as cluster:
            cluster.create_tables(at_size.TABLE)
            at_size.push(cluster, ids, first)
            saved = job.save()
            at_size.push(cluster, ids, second)
            after = threading.Thread(target=try_to_save, args=(job,))
            after.start()
            time.sleep(chance.uniform(0, 1.2 * saved.seconds))
            alive[chance.choice(sorted(alive))].kill()
            for process in alive.values():
                process.kill()
        after.join(100)

        newest, content = verified(processes.model_dir)
        assert content.rows == ROWS
        _, job = start(processes)
        assert sum(member.restored.rows for member in job.status().members) == ROWS
        with connect(model_dir=str(processes.model_dir), timeout_s=100) as cluster:
            held = at_size.pull(cluster, ids)
        is_first = newest.name == os.path.basename(saved.path)
        expected = at_size.values_after(first) if is_first else at_size.values_after(first, second)
        np.testing.assert_allclose(held, expected, rtol=1e-5)
        assert saves_under_way(processes.model_dir) == []


def try_to_save(job):
    with contextlib.suppress(MegalithError):
        job.save(timeout_s=20)


@pytest.mark.parametrize("seed", range(2))
def test_the_newest_complete_checkpoint_loads_whoever_is_killed_during_a_save(tmp_path, seed):
    kill_during_a_save(tmp_path, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_newest_complete_checkpoint_loads_after_50_deaths_during_saves(tmp_path):
    for seed in range(100, 150):
        directory = tmp_path / str(seed)
        directory.mkdir()
        kill_during_a_save(directory, seed)

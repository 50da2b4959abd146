"""Saves that meet a full disk, a disk that may not be written, and kill -9: the last one stands."""

import contextlib
import os
import random
import subprocess
import threading
import time

import numpy as np
import pytest

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.layout import integrity, manifest
from megalith.client import connect
from megalith.control import Controller
from megalith.errors import MegalithError, NotReady, SaveFailed
from support import at_size
from support.processes import Processes
from support.routes import routing_of
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
        integrity.verify(newest, file)
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


class Job:
    """A job of two ps and a worker, whose members die and come back, and what its rows should be.

    `twins` has by the path of each checkpoint what `twin` was when it was saved.
    """

    def __init__(self, processes, seed):
        self.processes = processes
        self.model_dir = processes.model_dir
        self.chance = random.Random(f"failed-saves-{seed}")
        self.ids = at_size.ids_in("random", ROWS)
        self.twin = at_size.Twin(ROWS)
        self.twins = {}
        self.start()

    def start(self):
        settings = {"increment_every_s": 0, "suspect_s": 1}
        self.members = self.processes.start_cluster(num_ps=2, num_workers=1, **settings)
        self.job = self.processes.job()
        self.wait_until_running()

    def wait_until_running(self):
        wait_until(lambda: self.job.status().phase == "running", 100)

    def connect(self):
        return connect(model_dir=str(self.model_dir), timeout_s=100)

    def push(self, cluster):
        """One more gradient for every row."""
        seed = self.chance.randrange(1 << 30)
        gradients = np.random.default_rng(seed).uniform(0.5, 2.0, (ROWS, at_size.DIM))
        gradients = gradients.astype(np.float32)
        at_size.push(cluster, self.ids, gradients)
        self.twin.push(gradients)

    def save(self):
        saved = self.job.save(timeout_s=100)
        self.twins[saved.path] = self.twin.copy()
        return saved

    def kill_during_a_save(self, victim):
        """Whether that save became complete; survivors go on, and the newest checkpoint is whole."""
        known = set(self.twins)
        before = self.job.status()
        saving = threading.Thread(target=try_to_save, args=(self.job,))
        saving.start()
        time.sleep(self.chance.uniform(0, 1.2 * before.last_save.seconds))
        self.members[victim].kill()
        assert self.members[victim].poll() is not None

        newest, content = verified(self.model_dir)  # while the others run
        assert sum(f.rows for f in content.files if f.table == at_size.TABLE.name) == ROWS
        saving.join(100)
        assert not saving.is_alive()
        assert [p.poll() for name, p in self.members.items() if name != victim] == [None] * 3

        newest, content = verified(self.model_dir)
        self.twins.setdefault(str(newest), self.twin.copy())
        self.bring_back(victim, before)
        return str(newest) not in known

    def bring_back(self, victim, before):
        service, _, index = victim.partition("-")
        if service == "controller":
            settings = {"increment_every_s": 0, "suspect_s": 1}
            again = self.processes.start_controller(num_ps=2, num_workers=1, **settings)
        else:
            if service == "ps":
                wait_until(lambda: self.job.status().phase == "forming", 100)
            again = self.processes.start_member(service, int(index))

        self.members[victim] = again
        if service == "ps":
            wait_until(lambda: self.job.status().epoch > before.epoch, 100, what="a new map")

        self.wait_until_running()
        step = self.job.status().global_step
        assert step >= before.global_step
        wait_until(lambda: self.job.status().global_step > step, 100, what="the job goes on")
        if service == "ps":
            self.go_back(int(index))

    def go_back(self, index):
        """The rows of a ps that died are those of the newest checkpoint, and no others."""
        restored = self.job.status().members[index].restored
        is_own = routing_of(self.job).owner_of(self.ids) == index
        assert restored.path == str(catalog.latest(self.model_dir))
        self.twin.take(self.twins[restored.path], is_own)

    def check_rows(self, cluster):
        held = at_size.pull(cluster, self.ids)
        np.testing.assert_allclose(held, self.twin.values, rtol=1e-4, atol=1e-5)


def try_to_save(job):
    with contextlib.suppress(MegalithError):
        job.save(timeout_s=60)


def lose_members_during_saves(tmp_path, seed, num_rounds):
    """Kill a ps, the controller or the worker in each of so many saves, and at last all at once.

    Returns whether each save became complete.
    """
    with Processes(tmp_path) as processes:
        running = Job(processes, seed)
        completed = []
        with running.connect() as cluster:
            cluster.create_tables(at_size.TABLE)
            running.push(cluster)
            running.save()
            for number in range(num_rounds):
                running.push(cluster)
                kinds = (running.chance.choice(("ps-0", "ps-1")), "controller", "worker-0")
                victim = kinds[number % len(kinds)]
                completed.append(running.kill_during_a_save(victim))
                running.check_rows(cluster)
                saved = running.save()
                assert str(verified(running.model_dir)[0]) == saved.path
                assert saves_under_way(running.model_dir) == []

            running.push(cluster)
            saving = threading.Thread(target=try_to_save, args=(running.job,))
            saving.start()
            time.sleep(running.chance.uniform(0, 1.2 * saved.seconds))
            for process in running.members.values():
                process.kill()

        saving.join(100)
        newest, content = verified(running.model_dir)
        running.twin = running.twins.get(str(newest), running.twin)
        running.start()
        members = running.job.status().members
        restored = [member.restored.rows for member in members if member.restored]
        assert sum(restored) == content.rows
        with running.connect() as cluster:
            running.check_rows(cluster)
        assert saves_under_way(running.model_dir) == []
        return completed


def test_survivors_train_on_and_the_newest_checkpoint_is_whole_whoever_dies_during_a_save(tmp_path):
    lose_members_during_saves(tmp_path, seed=0, num_rounds=3)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_job_goes_on_through_50_deaths_during_saves(tmp_path):
    completed = lose_members_during_saves(tmp_path, seed=100, num_rounds=50)
    print(f"{sum(completed)} of {len(completed)} saves became complete")
    assert 0 < sum(completed) < len(completed)

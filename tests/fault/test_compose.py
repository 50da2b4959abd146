"""The image and compose.yaml on a real engine: start, drive from the host, kill, replace, stop."""

import json
import os
import re
import secrets
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from megalith.control import Controller
from megalith.runner.free_ports import free_ports
from support.processes import run_cli
from support.waiting import wait_until

pytestmark = pytest.mark.timeout(
    600
)  # the first test waits for the image, which installs every dependency

REPOSITORY = Path(__file__).parents[2]
COMPOSE_FILE = REPOSITORY / "compose.yaml"  # includes deploy/docker-compose.yml
SERVICES = {"appmaster", "controller", "ps-0", "ps-1", "worker-0", "worker-1"}
KERNEL_CACHE = "/var/cache/megalith"


def docker(*arguments, environ=None, timeout_s=60):
    """Standard output of `docker ...`; a failure shows what it printed."""
    done = subprocess.run(
        ["docker", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environ or {})},
    )
    assert done.returncode == 0, (
        f"docker {' '.join(arguments)}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    )
    return done.stdout


class Project:
    """One cluster in containers, with faults as verbs.

    On free ports, so it runs beside any other.
    """

    def __init__(self, image, num_examples=0):
        self.name = f"megalith-test-{secrets.token_hex(4)}"
        self.port, self.metrics_port = free_ports(2)
        self._environ = {
            "MEGALITH_IMAGE": image,
            "MEGALITH_PORT": str(self.port),
            "MEGALITH_METRICS_PORT": str(self.metrics_port),
            "MEGALITH_NUM_EXAMPLES": str(num_examples),
        }
        self.job = Controller(f"localhost:{self.port}", None, timeout_s=30.0)

    def compose(self, *arguments, timeout_s=60):
        return docker(
            *("compose", "-f", str(COMPOSE_FILE), "-p", self.name, *arguments),
            environ=self._environ,
            timeout_s=timeout_s,
        )

    def up(self):
        self.compose("up", "-d")

    def up_and_healthy(self, within_s):
        """As `up`, and every container passes its health check; fails when that takes longer."""
        self.compose("up", "-d", "--wait", "--wait-timeout", str(within_s), timeout_s=within_s + 30)

    def down(self, *arguments):
        self.compose("down", *arguments)

    def kill(self, service):
        docker("kill", self._container(service))

    def states(self):
        """`docker inspect` of each container of ours, by service; the dead ones too.

        ZooKeeper is somebody else's.
        """
        ids = self.compose("ps", "--all", "--quiet", *SERVICES).split()
        described = json.loads(docker("inspect", *ids)) if ids else []
        return {
            about["Config"]["Labels"]["com.docker.compose.service"]: about for about in described
        }

    def health(self):
        return {
            service: about["State"]["Health"]["Status"] for service, about in self.states().items()
        }

    def changed_files(self, service):
        """Paths added to a container since it was made from its image."""
        lines = docker("diff", self._container(service)).splitlines()
        return [line[2:] for line in lines if line.startswith("A ")]

    def left(self):
        """Containers, networks and volumes of this project that exist."""
        label = f"label=com.docker.compose.project={self.name}"
        return {
            "containers": docker("ps", "--all", "--quiet", "--filter", label).split(),
            "networks": docker("network", "ls", "--quiet", "--filter", label).split(),
            "volumes": docker("volume", "ls", "--quiet", "--filter", label).split(),
        }

    def ctl(self, command):
        """`megalith ctl --json ...` on the host: the answer."""
        status, out, error = run_cli(
            "ctl", "--controller", f"localhost:{self.port}", "--json", command
        )
        assert status == 0, error
        return json.loads(out)

    def registered(self):
        """Who is listed in ZooKeeper, as a container of ours sees it."""
        look = (
            "from kazoo.client import KazooClient; client = KazooClient('zookeeper:2181'); client.start(); "
            "print(*client.get_children('/monolith/demo') if client.exists('/monolith/demo') else ()); client.stop()"
        )
        return set(self.compose("exec", "-T", "controller", "python", "-c", look).split())

    def wait_until_exited(self, timeout_s):
        docker(
            "wait", *self.compose("ps", "--all", "--quiet", *SERVICES).split(), timeout_s=timeout_s
        )

    def wait_for_steps(self, more=20, timeout_s=60):
        start = self.job.training_status()
        wait_until(
            lambda: self.job.training_status() >= start + more,
            timeout_s,
            f"{more} steps after {start}",
        )

    def member(self, service):
        role, _, index = service.partition("-")
        return next(m for m in self.job.status().members if (m.role, str(m.index)) == (role, index))

    def wait_until_lost(self, service):
        wait_until(
            lambda: not self.member(service).is_connected, what=f"the controller has lost {service}"
        )

    def wait_until_whole(self, timeout_s=60):
        """Every member is connected and training runs."""
        wait_until(
            lambda: (
                (status := self.job.status()).phase == "running"
                and all(member.is_connected for member in status.members)
            ),
            timeout_s,
            "every member is back",
        )

    def close(self):
        self.job.close()
        self.down("--volumes", "--remove-orphans", "--timeout", "1")

    def _container(self, service):
        return self.compose("ps", "--all", "--quiet", service).strip()


@pytest.fixture(scope="module")
def image():
    """The image of this working tree, under a name of its own so that nobody's `megalith` is
    replaced."""
    try:
        subprocess.run(["docker", "info"], capture_output=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        pytest.skip(
            "no Docker engine answers; start a Docker engine, e.g. `systemctl start docker`"
        )
    name = f"megalith-test:{secrets.token_hex(4)}"
    try:
        docker(
            "compose",
            "-f",
            str(COMPOSE_FILE),
            "build",
            environ={"MEGALITH_IMAGE": name},
            timeout_s=540,
        )
        yield name
    finally:
        subprocess.run(["docker", "rmi", "--force", name], capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def running(image):
    project = Project(image)
    try:
        project.up_and_healthy(within_s=60)
        yield project
    finally:
        project.close()


@pytest.fixture
def project(running):
    """A cluster that trains, whatever the test before it did: `up -d` brings back what is
    missing."""
    running.up()
    running.wait_until_whole()
    running.wait_for_steps()
    return running


def test_the_cluster_is_healthy_within_60_seconds_and_trains(project):
    assert project.health() == dict.fromkeys(SERVICES, "healthy")  # the fixture has given it 60 s
    project.wait_for_steps(50)
    status = project.job.status()
    assert [member.address for member in status.members] == [
        *("ps-0:7600", "ps-1:7600", "worker-0:7600", "worker-1:7600")
    ]
    assert sum(member.rows for member in status.members) > 0


def test_only_the_controller_is_published_and_only_to_this_machine(project):
    published = {
        service: {
            port: bindings
            for port, bindings in about["NetworkSettings"]["Ports"].items()
            if bindings
        }
        for service, about in project.states().items()
    }
    ports = {"7600/tcp": project.port, "7601/tcp": project.metrics_port}
    assert published.pop("controller") == {
        inner: [{"HostIp": "127.0.0.1", "HostPort": str(outer)}] for inner, outer in ports.items()
    }
    assert not any(published.values())
    page = (
        urllib.request.urlopen(f"http://127.0.0.1:{project.metrics_port}/metrics", timeout=5)
        .read()
        .decode()
    )
    assert float(re.search(r"^megalith_global_step (\S+)$", page, re.MULTILINE).group(1)) > 0


def test_no_service_runs_as_root(project):
    assert {about["Config"]["User"] for about in project.states().values()} == {"megalith"}
    assert project.compose("exec", "-T", "ps-0", "id", "-u").strip() == "10001"


def test_a_ps_loads_its_kernels_from_the_image(project):
    cached = project.compose("exec", "-T", "ps-0", "find", KERNEL_CACHE, "-name", "*.nbc").split()
    assert any("adagrad" in path for path in cached), "the image has compiled kernels"
    compiled = [path for path in project.changed_files("ps-0") if path.startswith(KERNEL_CACHE)]
    assert compiled == [], "a ps that trains has compiled nothing"


def test_stop_resume_save_and_status_from_the_host(project):
    project.ctl("stop")
    wait_until(
        lambda: project.ctl("block-status") == {"blocked_indices": [0, 1], "unblocked_indices": []}
    )
    held_at = project.ctl("training-status")["global_step"]
    saved = project.ctl("save")
    status = project.ctl("status")
    assert status["is_stopped"]
    assert status["global_step"] == held_at == saved["step"]
    assert status["last_checkpoint"] == saved["path"] == f"/model/model.ckpt-{held_at}"
    assert saved["rows"] == sum(member["rows"] for member in status["members"]) > 0
    project.ctl("resume")
    project.wait_for_steps()


def test_a_killed_worker_comes_back_with_up_and_goes_on_where_it_stood(project):
    epoch = project.job.status().epoch
    project.kill("worker-1")
    project.wait_until_lost("worker-1")
    stood_at = project.member("worker-1").position
    project.wait_for_steps()  # the other worker needs nobody
    assert not project.member("worker-1").is_connected, (
        "docker kill is not undone by a restart policy"
    )
    project.up()
    project.wait_until_whole()
    wait_until(
        lambda: project.member("worker-1").position > stood_at > 0, what=f"batches after {stood_at}"
    )
    assert project.job.status().epoch == epoch


def test_a_killed_ps_comes_back_with_up_from_the_checkpoint_under_a_new_epoch(project):
    rows_saved = project.job.save().rows
    before = project.job.status()
    project.kill("ps-1")
    wait_until(lambda: project.job.status().phase == "forming", what="the cluster has felt it")
    project.up()
    project.wait_until_whole()
    project.wait_for_steps()
    after = project.job.status()
    assert after.epoch == before.epoch + 1
    assert after.global_step > before.global_step
    # Rows come with a member's next report.
    wait_until(lambda: sum(member.rows for member in project.job.status().members) >= rows_saved)
    project.up_and_healthy(within_s=60)


def test_a_crashed_ps_is_restarted_by_the_engine(project):
    epoch = project.job.status().epoch
    # Killed from inside, as by a lack of memory: for the engine that is a failure, not the
    # operator's wish.
    child_of_init = "import os, pathlib; os.kill(int(pathlib.Path('/proc/1/task/1/children').read_text().split()[0]), 9)"
    project.compose("exec", "-T", "ps-0", "python", "-c", child_of_init)
    wait_until(lambda: project.job.status().epoch == epoch + 1, what="a new epoch")
    project.wait_until_whole()
    project.wait_for_steps()
    assert project.states()["ps-0"]["RestartCount"] == 1


MEMBERS = {"controller.0", "ps.0", "ps.1", "worker.0", "worker.1"}


def test_everyone_is_listed_in_zookeeper(project):
    wait_until(lambda: project.registered() == MEMBERS, what=f"{MEMBERS} are listed")


def test_a_killed_zookeeper_stops_nobody_and_everyone_is_listed_in_the_next_one(project):
    epoch = project.job.status().epoch
    project.kill("zookeeper")
    project.wait_for_steps(50)
    project.up()  # with nothing in it: the old one's data went with its container's memory
    project.kill("worker-1")
    project.wait_until_lost("worker-1")
    project.up()
    project.wait_until_whole(timeout_s=90)
    wait_until(lambda: project.registered() == MEMBERS, 90, f"{MEMBERS} are listed again")
    assert project.job.status().epoch == epoch


def test_stop_drains_every_service_within_10_seconds_and_down_leaves_only_the_volume(project):
    checkpoint = project.job.save()
    started = time.monotonic()
    project.compose("stop")
    assert time.monotonic() - started < 10
    assert {
        service: about["State"]["ExitCode"] for service, about in project.states().items()
    } == dict.fromkeys(SERVICES, 0)
    project.down()
    assert project.left() == {
        "containers": [],
        "networks": [],
        "volumes": [f"{project.name}_model"],
    }
    project.up()
    project.wait_until_whole()
    assert project.job.status().global_step >= checkpoint.step
    assert project.job.status().last_checkpoint == checkpoint.path


def test_a_finished_job_exits_and_nothing_begins_it_again(image):
    project = Project(image, num_examples=200_000)
    try:
        project.up()
        project.wait_until_exited(timeout_s=120)
        states = project.states()
        assert {
            service: about["RestartCount"] for service, about in states.items()
        } == dict.fromkeys(SERVICES, 0)
        statuses = {service: about["State"]["ExitCode"] for service, about in states.items()}
        assert statuses == dict.fromkeys(SERVICES, 0)
        assert "job ended succeeded=True" in project.compose("logs", "controller")
    finally:
        project.close()
    assert not any(project.left().values())

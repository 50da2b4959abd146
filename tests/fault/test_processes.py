"""What real processes do when they are stopped, killed, paused or started wrongly."""

import re
import signal
import socket
import time
import urllib.request

import numpy as np
import pytest

from megalith.client import VariableConfig, connect, errors
from megalith.controller.members import journal_file
from megalith.protos import appmaster_pb2, appmaster_pb2_grpc
from megalith.runner.free_ports import free_ports
from megalith.tasks import clicks
from megalith.wire.channel import open_channel
from support.processes import Processes
from support.waiting import wait_until

EXTRA = [f"extra{number}" for number in range(8)]  # variables that no worker trains


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as processes:
        yield processes


def wait_for_steps(job, more=20, timeout_s=60):
    """Until training has taken `more` steps from now."""
    start = job.training_status()
    wait_until(
        lambda: job.training_status() >= start + more, timeout_s, f"{more} steps after {start}"
    )


def test_sigterm_drains_every_service_and_exits_0(processes):
    members = processes.start_cluster()
    members["appmaster"] = processes.start(
        "appmaster", model_dir=processes.model_dir, port=0, metrics_port=0
    )
    job = processes.job()
    wait_for_steps(job)
    ports = {
        name: int(process.reported("address").rpartition(":")[2])
        for name, process in members.items()
    }
    for name in ("worker-1", "appmaster", "ps-1", "controller", "ps-0", "worker-0"):
        members[name].terminate()
        assert members[name].wait() == 0, members[name].output()
        with socket.socket() as probe:  # at once: a moment later the port may be somebody else's
            assert probe.connect_ex(("127.0.0.1", ports[name])) != 0
    assert not (processes.model_dir / "controller_server_addr.txt").exists()


@pytest.mark.golden("G15")
def test_sigusr1_dumps_every_thread_and_the_process_goes_on(processes):
    members = processes.start_cluster(num_ps=1, num_workers=1)
    job = processes.job()
    wait_for_steps(job)
    for name in ("controller", "ps-0", "worker-0"):
        for _ in range(
            300
        ):  # a dump that meets threads in the middle of a call does no harm to them
            members[name].signal(signal.SIGUSR1)
            time.sleep(0.002)
        wait_until(
            lambda name=name: members[name].output().count("most recent call first") > 300,
            what=name,
        )
        assert members[name].poll() is None, members[name].output()[-2000:]
    assert "training.py" in members["worker-0"].output()
    wait_for_steps(job)


def test_each_service_has_metrics_on_a_port_of_its_own(processes):
    members = processes.start_cluster(num_ps=1, num_workers=1)
    wait_for_steps(processes.job())
    expected = {
        "controller": "megalith_global_step",
        "ps-0": "megalith_rows",
        "worker-0": "megalith_examples_per_second",
    }
    for name, metric in expected.items():
        page = (
            urllib.request.urlopen(
                f"http://{members[name].reported('metrics')}/metrics", timeout=60
            )
            .read()
            .decode()
        )
        lines = [line for line in page.splitlines() if re.match(rf"{metric}[ {{]", line)]
        assert sum(float(line.split()[-1]) for line in lines) > 0


def test_a_killed_worker_is_replaced_and_goes_on_where_it_stood(processes):
    members = processes.start_cluster()
    job = processes.job()
    wait_for_steps(job)
    members["worker-1"].kill()
    lost = wait_until(
        lambda: next(
            (m for m in job.status().members if m.role == "worker" and not m.is_connected), None
        )
    )
    assert lost.index == 1
    wait_for_steps(job)
    processes.start_member("worker", 1, batch_size=256)

    def replaced():
        return next(m for m in job.status().members if m.role == "worker" and m.index == 1)

    wait_until(lambda: replaced().is_connected and replaced().position > lost.position)
    assert replaced().address != lost.address
    wait_for_steps(job)


def test_a_killed_chief_is_replaced(processes):
    members = processes.start_cluster()
    job = processes.job()
    wait_for_steps(job)
    members["worker-0"].kill()
    wait_until(lambda: not job.status().members[2].is_connected)
    wait_for_steps(job)
    processes.start_member("worker", 0, batch_size=256)
    wait_until(lambda: job.status().members[2].is_connected)
    wait_for_steps(job)


def trained_values(cluster):
    """Rows of the first batch, and variables, by name."""
    batch = clicks.draw_batch(seed=1, number=0, size=256)
    names = ["readout", "dense", "bias", *EXTRA]
    pulled = cluster.pull(batch.ids, names)
    return {**pulled.rows, **pulled.variables}


def test_a_killed_ps_is_replaced_from_the_checkpoint_and_training_goes_on(processes):
    members = processes.start_cluster()
    job = processes.job()
    wait_for_steps(job)
    with connect(model_dir=str(processes.model_dir)) as cluster:
        extra = [VariableConfig(name, np.zeros(3, np.float32)) for name in EXTRA]
        cluster.create_variables(*extra)
        values = {name: np.full(3, number + 1.0) for number, name in enumerate(EXTRA)}
        cluster.push(assign_variables=values)
        job.stop()
        wait_until(lambda: job.block_status() == ([0, 1], []))
        saved = job.save()
        before = job.status()
        trained = trained_values(cluster)

        members["ps-1"].kill()
        wait_until(lambda: job.status().phase == "forming")
        processes.start_member("ps", 1)
        wait_until(lambda: job.status().phase == "running")
        restored = trained_values(cluster)

    routing = job.routing()
    # The killed ps had variables too.
    assert {routing.owner_of_name(name) for name in EXTRA} == {0, 1}
    for name, value in trained.items():
        assert np.any(value), name
        np.testing.assert_array_equal(restored[name], value, name)

    after = job.status()
    assert after.epoch == before.epoch + 1
    assert after.members[1].restored.path == saved.path
    job.resume()
    wait_for_steps(job)
    assert job.training_status() > before.global_step
    for name in ("worker-0", "worker-1", "ps-0"):
        assert members[name].poll() is None


def test_a_killed_ps_without_a_checkpoint_starts_empty_and_training_goes_on(processes):
    members = processes.start_cluster()
    job = processes.job()
    wait_for_steps(job)
    step = job.training_status()
    for index in (0, 1):
        members[f"ps-{index}"].kill()
    for index in (0, 1):
        processes.start_member("ps", index)
    wait_until(lambda: job.status().phase == "running")
    wait_for_steps(job)
    assert job.training_status() > step


def test_a_killed_controller_is_replaced_and_training_goes_on(processes):
    members = processes.start_cluster(silence_s=5)
    job = processes.job()
    wait_for_steps(job)
    step = job.training_status()
    epoch = job.status().epoch
    members["controller"].kill()
    processes.start_controller(num_ps=2, num_workers=2)
    wait_until(lambda: job.status().phase == "running")
    wait_until(lambda: job.training_status() > step)
    wait_for_steps(job)
    assert (
        job.status().epoch == epoch
    )  # the same servers: the same map, and nobody had to look twice
    for name in ("worker-0", "worker-1", "ps-0", "ps-1"):
        assert members[name].poll() is None


def test_a_barrier_outlives_the_controller_that_placed_it(processes):
    members = processes.start_cluster()
    job = processes.job()
    wait_for_steps(job)

    def has_worker_1_trained():
        return any(
            (one.role, one.index) == ("worker", 1) and one.position for one in job.status().members
        )

    wait_until(has_worker_1_trained, what="worker-1 has a position to lose")
    job.stop()
    wait_until(lambda: job.block_status() == ([0, 1], []))
    step = job.training_status()
    wait_until(lambda: journal_file.read(processes.model_dir).global_step == step)
    members["controller"].kill()
    members["worker-1"].kill()
    processes.start_controller(num_ps=2, num_workers=2)
    replacement = processes.start_member("worker", 1, batch_size=256)
    wait_until(lambda: job.block_status() == ([0, 1], []))
    status = job.status()
    assert status.is_stopped
    assert (status.phase, status.global_step) == ("running", step)
    with pytest.raises(errors.BarrierAlreadyPlaced):
        job.stop()
    job.resume()
    wait_for_steps(job)
    position = int(replacement.reported("position"))
    assert (
        0 < position <= step
    )  # it went on where the killed one stood, which only the journal could tell
    for name in ("worker-0", "ps-0", "ps-1"):
        assert members[name].poll() is None


def test_a_hung_worker_loses_its_place_and_a_replacement_takes_it(processes):
    members = processes.start_cluster(silence_s=3)
    job = processes.job()
    wait_for_steps(job)
    members["worker-1"].pause()
    wait_until(lambda: not job.status().members[3].is_connected)
    processes.start_member("worker", 1, batch_size=256)
    wait_until(lambda: job.status().members[3].is_connected)
    wait_for_steps(job)
    members["worker-1"].signal(signal.SIGCONT)
    assert members["worker-1"].wait() == 1
    assert "is held by a live process" in members["worker-1"].output()


def test_a_pull_from_a_hung_ps_ends_at_its_deadline(processes):
    members = processes.start_cluster(num_ps=1, num_workers=0)
    wait_until(lambda: processes.job().status().phase == "running")
    where = {"model_dir": str(processes.model_dir)}
    with connect(**where, timeout_s=60.0) as patient, connect(**where, timeout_s=2.0) as impatient:
        patient.create_variables(VariableConfig("v", np.zeros(1, np.float32)))
        members["ps-0"].pause()
        started = time.monotonic()
        with pytest.raises(errors.DeadlinePassed):
            impatient.pull(variables=["v"])
        assert time.monotonic() - started < 25  # not the 30 s of one try
        members["ps-0"].signal(signal.SIGCONT)
        assert patient.pull(variables=["v"]).variables["v"].tolist() == [0.0]


def test_an_appmaster_that_looks_for_a_lost_controller_still_ends_at_once(processes):
    controller = processes.start_controller()
    appmaster = processes.start("appmaster", model_dir=processes.model_dir, port=0, metrics_port=0)
    address = appmaster.reported("address")
    wait_until(lambda: processes.job().status())
    controller.kill()
    with open_channel(address) as channel:
        stub = appmaster_pb2_grpc.AppMasterServiceStub(channel)
        waiting = stub.ponyHeartbeat.future(appmaster_pb2.PonyHeartbeatRequest(), timeout=60)
        wait_until(lambda: not waiting.done())
        appmaster.terminate()
        assert appmaster.wait() == 0


def test_a_port_in_use_is_named_with_the_way_out(processes):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        controller = processes.start_controller(port=port)
        assert controller.wait() == 1
        assert f"--port={port}: cannot listen on 127.0.0.1:{port}" in controller.output()
        other = processes.start_controller(metrics_port=port)
        assert other.wait() == 1
        assert f"--metrics-port={port}" in other.output()


def test_a_member_without_a_controller_gives_up_with_the_address(processes):
    (port,) = free_ports(1)
    ps = processes.start("ps", controller=f"127.0.0.1:{port}", join_timeout_s=1)
    assert ps.wait() == 1
    assert f"127.0.0.1:{port}" in ps.output()
    assert "start one, or correct --controller" in ps.output()


def test_a_duplicate_worker_is_refused_and_the_first_goes_on(processes):
    members = processes.start_cluster(num_ps=1, num_workers=1)
    job = processes.job()
    wait_for_steps(job)
    second = processes.start_member("worker", 0)
    assert second.wait() == 1
    assert "worker-0 is held by a live process" in second.output()
    wait_for_steps(job)
    assert members["worker-0"].poll() is None


def test_bad_settings_exit_with_2_and_one_clear_line(processes):
    unknown = processes.start("ps", indx=0)
    assert unknown.wait() == 2
    assert "--indx is no option; did you mean --index?" in unknown.output()
    variable = processes.start("ps", model_dir="m", environ={"MEGALITH_PS_INDXE": "1"})
    assert variable.wait() == 2
    assert (
        "MEGALITH_PS_INDXE is not a setting; did you mean MEGALITH_PS_INDEX?" in variable.output()
    )
    homeless = processes.start("worker", index=0)
    assert homeless.wait() == 2
    assert "neither --controller nor --model-dir is given" in homeless.output()


def test_a_model_dir_that_cannot_be_written_is_named(processes):
    blocker = processes.directory / "file"
    blocker.touch()
    controller = processes.start_controller(model_dir=blocker / "model")
    assert controller.wait() == 1
    assert f"directory {blocker / 'model'}: not writable" in controller.output()

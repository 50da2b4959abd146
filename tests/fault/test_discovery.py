"""Whole clusters that find each other through a back end: formed, trained, ended.

And a ZooKeeper that is killed.
"""

import os
import re
import signal
import socket

import pytest

from support.back_ends import OwnZooKeeper, fresh_job, server_or_skip
from support.processes import Processes, arguments_of, children_of, run_cli
from support.waiting import wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as processes:
        yield processes


def back_end(kind):
    """The flags of `megalith up` for a back end; the test is skipped where no server is."""
    if kind == "zookeeper":
        return ("--discovery", f"zookeeper://{server_or_skip(kind)}/{fresh_job()}")
    if kind == "consul":
        return ("--discovery", f"consul://{server_or_skip(kind)}", "--job", fresh_job())
    return ("--discovery", f"{kind}:")


def test_a_role_without_work_is_there_as_long_as_worker_0_and_succeeds(processes):
    with socket.create_server(("127.0.0.1", 0)) as worker_0:
        worker_0.settimeout(60)
        environ = {
            "MLP_ROLE": "DSWORKER",
            "MLP_DSWORKER_NUM": "1",
            "MLP_WORKER_NUM": "1",
            "MLP_WORKER_0_HOST": "127.0.0.1",
            "MLP_WORKER_0_PORT": str(worker_0.getsockname()[1]),
        }
        bystander = processes.start(
            "worker", environ=environ, discovery="mlp:", model_dir=processes.model_dir
        )
        connection, _ = worker_0.accept()
        connection.close()
        assert bystander.poll() is None

    assert bystander.wait() == 0
    assert "this role has no work here" in bystander.output()
    assert "is gone" in bystander.output()
    assert not processes.model_dir.exists()


def up(processes, *options):
    return processes.cli(
        "up",
        "--model-dir",
        processes.model_dir,
        "--batch-size",
        128,
        "--benchmark-s",
        0.5,
        *options,
    )


def logs_of(processes):
    return {path.stem: path.read_text() for path in (processes.model_dir / "logs").glob("*.log")}


# The three shapes of golden G28; the two real servers have the first of them with ps to choose from
# and to spare.
CASES = {
    "zookeeper-4-ps-3-workers-2-redundant-2-extra": ("zookeeper", 4, 3, 2, 2),
    "consul-4-ps-3-workers-2-redundant-2-extra": ("consul", 4, 3, 2, 2),
    "tf-config-4-ps-3-workers": ("tf-config", 4, 3, 0, 0),
    "static-2-ps-2-extra-1-worker": ("static", 2, 1, 0, 2),
    "file-4-ps-2-redundant-2-workers": ("file", 4, 2, 2, 0),
}


@pytest.mark.golden("G28")
@pytest.mark.parametrize("case", CASES)
def test_a_cluster_forms_trains_and_every_process_exits_0(case, processes):
    kind, num_ps, num_workers, num_redundant, num_extra = CASES[case]
    shape = (
        "--ps",
        num_ps,
        "--workers",
        num_workers,
        "--redundant-ps",
        num_redundant,
        "--extra-ps",
        num_extra,
    )
    cli = up(processes, *back_end(kind), *shape, "--num-examples", 128 * 30 * num_workers)
    assert cli.wait(400) == 0, cli.output()
    logs = logs_of(processes)
    num_candidates = num_ps + num_redundant + num_extra
    names = {"controller", "appmaster"} | {f"ps-{index}" for index in range(num_candidates)}
    assert set(logs) == names | {f"worker-{index}" for index in range(num_workers)}
    assert {name: "stopped status=0" in log for name, log in logs.items()} == dict.fromkeys(
        logs, True
    )
    assert "job ended succeeded=True" in logs["controller"]
    for name in sorted(set(logs) - {"controller", "appmaster"}):
        role, _, index = name.partition("-")
        assert f"Started {role} {index} at " in logs[name], "every member has entered itself"
    if num_candidates > num_ps:
        (ps_list,) = (processes.model_dir / "ps_cluster_dir").iterdir()
        assert len(set(ps_list.read_text().split(","))) == num_ps


def test_zookeeper_killed_while_a_job_trains_stops_nobody_and_a_new_worker_finds_the_job_once_it_is_back(
    processes,
):
    server = OwnZooKeeper(processes.directory / "zk")
    server.start()
    try:
        found_by = ("--discovery", f"zookeeper://{server.address}/{fresh_job()}?ttl_s=2")
        cli = up(processes, *found_by, "--ps", 1, "--workers", 2)
        job = processes.job(60)
        wait_until(lambda: (processes.model_dir / "controller_server_addr.txt").exists())
        wait_until(lambda: job.training_status() > 10, what="training")
        wait_until(lambda: "Started worker 1" in logs_of(processes)["worker-1"])
        server.kill()
        wait_until(
            lambda: "ZooKeeper suspended" in logs_of(processes)["worker-0"],
            what="the fault is felt",
        )
        step = job.training_status()
        wait_until(lambda: job.training_status() > step + 20, what="training goes on")
        kill_worker_1(cli)
        wait_until(lambda: "start it again with: " in " ".join(cli.output().split()))
        before = logs_of(processes)["worker-1"].count("Started worker 1")
        server.start()
        restart = ("app", "restart", "worker-1")
        assert run_cli("ctl", "--model-dir", processes.model_dir, *restart)[0] == 0
        wait_until(
            lambda: logs_of(processes)["worker-1"].count("Started worker 1") > before,
            what="the new worker is in and registered",
        )
        step = job.training_status()
        wait_until(lambda: job.training_status() > step + 20)
    finally:
        server.close()


@pytest.mark.long
def test_up_says_what_it_waits_for_when_no_zookeeper_answers(processes):
    cli = up(
        processes,
        "--discovery",
        "zookeeper://127.0.0.1:1",
        "--job",
        fresh_job(),
        "--ps",
        1,
    )
    wait_until(
        lambda: re.search(r"waiting for .*no ZooKeeper answers at 127\.0\.0\.1:1", cli.output()),
        100,
    )
    cli.terminate()
    assert cli.wait() == 0
    assert "Traceback" not in cli.output()


def kill_worker_1(cli):
    for child in children_of(cli.pid):
        if {"megalith.worker", "--index=1"} <= arguments_of(child):
            os.kill(child, signal.SIGKILL)

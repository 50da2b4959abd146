"""The command line as a person uses it: up, train, ctl, Ctrl-C."""

import json
import os
import re
import signal
import socket
import time

import pytest

from megalith.control import Controller
from support.processes import Processes, arguments_of, children_of, is_gone, run_cli
from support.waiting import wait_until


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as processes:
        yield processes


def up(processes, *options):
    """`megalith up` that has taken a few steps: (process, its children, controller)."""
    cli = processes.cli("up", "--model-dir", processes.model_dir, "--batch-size", 256, *options)
    job = processes.job()
    wait_until(
        lambda: "Ctrl-C stops everything" in cli.output() or cli.poll() is not None, what="up"
    )
    assert cli.poll() is None, cli.output()
    wait_until(lambda: job.training_status() > 10)
    return cli, children_of(cli.pid), job


def addresses(job):
    status = job.status()
    return [
        status.address,
        *(m.address for m in status.members),
        *(m.metrics_address for m in status.members),
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_up_ends_no_process_and_no_port_is_left(processes, number):
    cli, children, job = up(processes)
    assert len(children) == 6
    listening = addresses(job)
    cli.signal(number)
    status = cli.wait()
    assert status == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    for child in children:
        wait_until(lambda child=child: is_gone(child), what=f"process {child}")
    for address in listening:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) != 0


def test_ctrl_c_saves_all_that_was_trained_and_the_next_up_goes_on_from_it(processes):
    cli, _, _ = up(processes)
    cli.signal(signal.SIGINT)
    assert cli.wait() == 0
    path, rows = re.search(r"saved (\S+): ([\d,]+) rows in", cli.output()).groups()
    assert f"stopping; saved: {path}" in cli.output()
    again, _, job = up(processes, "--save-on-exit", "false")
    wait_until(lambda: f"restored {path}: step" in again.output())
    assert f"{rows} rows on 2 ps" in again.output()
    wait_until(lambda: job.status().unsaved.startswith("steps "))
    again.signal(signal.SIGINT)
    assert again.wait() == 0
    assert re.search(rf"stopping; not saved: steps \d+\.\.\d+ since {path}", again.output())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_arrives_twice_saves_as_once(processes, number):
    cli, _, _ = up(processes)
    cli.signal(number)
    first = time.monotonic()
    wait_until(lambda: time.monotonic() > first + 0.01)
    cli.signal(number)
    assert cli.wait() == 0
    path = re.search(r"saved (\S+): [\d,]+ rows in", cli.output()).group(1)
    assert f"stopping; saved: {path}" in cli.output()


def test_a_second_ctrl_c_ends_a_save_that_hangs_and_says_what_is_not_saved(processes):
    cli, children, _ = up(processes)
    ps = next(pid for pid in children if "megalith.ps" in arguments_of(pid))
    os.kill(ps, signal.SIGSTOP)
    cli.signal(signal.SIGINT)
    wait_until(lambda: "Ctrl-C again stops at once" in cli.output())
    said = time.monotonic()
    wait_until(lambda: time.monotonic() > said + 1.5)
    cli.signal(signal.SIGINT)
    assert cli.wait() == 1
    assert "stopping at once" in cli.output()
    assert "stopping; not saved: steps 0.." in cli.output()
    assert all(is_gone(child) for child in children)
    assert list(processes.model_dir.glob("model.ckpt-*")) == []


def test_ctl_drives_a_running_job(processes):
    up(processes)
    ctl = ("ctl", "--model-dir", processes.model_dir)
    assert run_cli(*ctl, "stop")[:2] == (0, "training is held\n")
    wait_until(
        lambda: json.loads(run_cli(*ctl, "--json", "block-status")[1])["blocked_indices"] == [0, 1]
    )
    status, out, err = run_cli(*ctl, "stop")
    assert (status, out) == (1, "")
    assert err == (
        "megalith ctl stop: Barrier is placed already. An operator has stopped training; "
        "`megalith ctl resume` lets it go on. [ALREADY_EXISTS]\n"
    )
    _, table, _ = run_cli(*ctl, "status")
    assert "running, stopped by an operator, step" in table
    assert table.count("blocked") == 2
    step = json.loads(run_cli(*ctl, "training-status", "--json")[1])["global_step"]
    saved = json.loads(run_cli(*ctl, "save", "--json")[1])
    assert saved["step"] == step
    assert (processes.model_dir / f"model.ckpt-{step}" / "manifest.json").exists()
    assert run_cli(*ctl, "resume")[0] == 0
    wait_until(
        lambda: json.loads(run_cli(*ctl, "--json", "training-status")[1])["global_step"] > step
    )
    described = json.loads(run_cli(*ctl, "status", "--json")[1])
    assert described["last_checkpoint"].endswith(f"model.ckpt-{step}")
    address = described["address"]
    assert run_cli("ctl", "--controller", address, "training-status")[0] == 0
    assert run_cli("ctl", "training-status", "--controller", address)[0] == 0


def test_members_started_by_hand_end_with_up(processes):
    cli, _, job = up(processes)
    victim = next(
        member for member in job.status().members if member.role == "worker" and member.index == 1
    )
    os.kill(victim.pid, signal.SIGKILL)
    by_hand = processes.start_member("worker", 1)
    wait_until(
        lambda: member_pid(job, 1) == by_hand.pid, what="the seat of the one that was killed"
    )
    cli.signal(signal.SIGTERM)
    assert cli.wait() == 0
    assert by_hand.wait() == 0
    assert "the job has ended" in by_hand.output()


def member_pid(job, index):
    return next(
        member.pid
        for member in job.status().members
        if member.role == "worker" and member.index == index
    )


def test_ctl_without_a_controller_fails_with_one_line(processes):
    status, out, err = run_cli("ctl", "--controller", "127.0.0.1:1", "--timeout-s", 5, "status")
    assert (status, out) == (1, "")
    assert err == (
        "megalith ctl status: controller 127.0.0.1:1: cannot be reached (Connection refused); "
        "check --controller [UNAVAILABLE]\n"
    )
    status, _, err = run_cli(
        "ctl", "--model-dir", processes.directory / "nowhere", "--timeout-s", 0.5, "stop"
    )
    assert status == 1
    assert "no controller serves this model directory" in err


@pytest.mark.parametrize("command", [("up",), ("train", "clicks")])
def test_a_second_job_in_the_same_model_dir_is_refused_and_touches_nothing_of_the_first(
    processes, command
):
    cli, _, job = up(processes, "--ps", 1, "--workers", 1)
    wait_until(lambda: (processes.model_dir / "appmaster_server_addr.txt").exists())

    def files():
        return {
            path: path.read_bytes()
            for path in processes.model_dir.iterdir()
            if ".json" not in path.name
            and path.is_file()  # the journal, also one that is being written
        }

    before = files()
    status, out, err = run_cli(*command, "--model-dir", processes.model_dir)
    assert (status, out) == (1, "")
    assert f"a controller at {job.status().address} serves it" in " ".join(err.split())
    assert files() == before
    assert "did not start" not in (processes.model_dir / "logs" / "controller.log").read_text()
    assert cli.poll() is None
    assert job.status().phase == "running"
    assert run_cli("ctl", "--model-dir", processes.model_dir, "app", "status")[0] == 0


def test_up_says_how_to_start_a_killed_worker_again_and_the_command_works(processes):
    cli, _, job = up(processes)
    log = processes.model_dir / "logs" / "worker-1.log"
    assert log.exists()
    (victim,) = [
        child
        for child in children_of(cli.pid)
        if {"megalith.worker", "--index=1"} <= arguments_of(child)
    ]
    restart = (
        "worker-1 was killed (signal 9); start it again with: "
        f"megalith ctl --model-dir {processes.model_dir} app restart worker-1"
    )
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: restart in cli.output())
    assert run_cli(*restart.partition("megalith ")[2].split())[0] == 0
    wait_until(lambda: all(member.is_connected for member in job.status().members))
    step = job.training_status()
    wait_until(lambda: job.training_status() > step + 20)


def test_train_shows_progress_and_a_summary_and_leaves_a_checkpoint(processes):
    status, out, err = run_cli(
        "train", "clicks", "--model-dir", processes.model_dir, "--num-examples", 200_000
    )
    assert status == 0, err
    assert "batches, step" in out
    for word in ("AUC", "best reachable AUC", "difference", "examples/s", "model.ckpt-97"):
        assert word in out
    assert (processes.model_dir / "model.ckpt-97" / "manifest.json").exists()
    with pytest.raises(Exception, match="no controller serves"):
        Controller(None, str(processes.model_dir), 0.2).status()


def test_a_train_that_the_model_refuses_leaves_its_files_and_says_what_differs(processes):
    clicks = processes.model_dir.parent / "clicks.csv"
    rows = [f"{number % 9},{number % 5},{number % 7},{number % 2}" for number in range(400)]
    clicks.write_text("\n".join(["user,price,km,click", *rows, ""]))

    def train(dense):
        told = ("--label", "click", "--features", "user", "--dense", dense, "--workers", 1)
        where = ("--data", clicks, "--model-dir", processes.model_dir)
        return run_cli("train", "ctr", *where, *told)

    def files():
        return [(processes.model_dir / name).read_text() for name in ("settings.json", "task.json")]

    status, _, err = train("price,km")
    assert status == 0, err
    before = files()

    status, _, err = train("km")
    assert status == 1
    assert files() == before
    differs = "has a model that was trained with --dense=price,km; for a model of its own"
    assert differs in " ".join(err.split())


def test_an_interrupted_train_leaves_nothing_behind(processes):
    cli = processes.cli("train", "--model-dir", processes.model_dir, "--num-examples", 100_000_000)
    job = processes.job(60)
    wait_until(lambda: (processes.model_dir / "controller_server_addr.txt").exists())
    wait_until(lambda: job.training_status() > 10)
    children = children_of(cli.pid)
    assert len(children) == 6
    cli.signal(signal.SIGINT)
    assert cli.wait() == 130
    assert all(is_gone(child) for child in children)


def test_a_task_that_does_not_exist_in_its_module_is_refused_before_anything_starts(processes):
    name = "megalith.tasks.clicks:no_factory"
    status, _, err = run_cli("train", name, "--model-dir", processes.model_dir / "new")
    assert status == 2
    assert f"--task={name}: no such task" in err
    assert not (processes.model_dir / "new").exists()


def test_a_task_that_cannot_be_made_ends_train_with_the_worker_s_reason(processes, tmp_path):
    path = tmp_path / "unmade_task.py"
    path.write_text("def make(**options):\n    raise ValueError('no data of that day')\n")
    status, _, err = run_cli("train", f"{path}:make", "--model-dir", processes.model_dir)
    assert status == 1
    assert "it cannot be made: ValueError: no data of that day" in err


def test_help_and_version():
    status, out, _ = run_cli("--help")
    assert status == 0
    for command in ("up", "train", "ctl", "controller", "ps", "worker", "appmaster"):
        assert command in out
    assert run_cli("--version")[1].startswith("megalith 0.")
    assert "--max-message-bytes" in run_cli("ps", "--help")[1]
    assert run_cli("nonsense")[0] == 2

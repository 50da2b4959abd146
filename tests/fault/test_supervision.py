"""`megalith up --restart`: processes killed with kill -9 are started again, and the job still ends
well."""

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from megalith.cli.app import app as cli_app
from megalith.control import address_file
from support.processes import Processes, arguments_of, children_of, is_gone
from support.waiting import wait_until


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as processes:
        yield processes


def ctl(*arguments):
    """`megalith ctl ...` without a process of its own: (status, stdout, stderr)."""
    done = CliRunner().invoke(cli_app, ["ctl", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def app(processes):
    """`megalith ctl app ... --json` as a function: the answer, or the line of its error."""

    def call(*arguments):
        status, out, err = ctl("app", "--model-dir", processes.model_dir, "--json", *arguments)
        return json.loads(out) if status == 0 else err

    return call


def child(cli, service, index=None):
    """Process id of one service that `up` runs; None if it does not."""
    wanted = {f"megalith.{service}", *([f"--index={index}"] if index is not None else [])}
    return next((pid for pid in children_of(cli.pid) if wanted <= arguments_of(pid)), None)


def kill_and_wait_for_the_next(cli, service, index=None):
    victim = wait_until(lambda: child(cli, service, index), what=f"{service} runs")
    before = arguments_of(victim)
    os.kill(victim, signal.SIGKILL)
    successor = wait_until(
        lambda: (pid := child(cli, service, index)) and pid != victim and pid,
        what=f"{service} is started again",
    )
    assert arguments_of(successor) == before
    return successor


def end_training(job):
    """After some more steps have every worker end its share: the data has no end that could come
    too early."""
    step = job.training_status()
    wait_until(lambda: job.training_status() > step + 20, what="training goes on")
    job.stop("Stop")
    wait_until(lambda: not job.block_status()[1], what="workers know that it is the end")
    job.resume()


def is_running(status):
    """The AppMaster answers, and has heard of `up` and of a controller whose job runs."""
    return isinstance(status, dict) and status["is_supervised"] and status["phase"] == "running"


def restarts(app):
    """How often each process was started again, as the AppMaster says.

    None while it does not answer.
    """
    status = app("status")
    return (
        {each["name"]: each["starts"] - 1 for each in status["processes"]}
        if isinstance(status, dict)
        else None
    )


@pytest.mark.timeout(600)  # kernels may have to be compiled, and every process starts twice
def test_every_kind_of_process_is_started_again_after_kill_9_and_the_job_exits_0(processes, app):
    cli = processes.cli(
        "up", "--model-dir", processes.model_dir, "--restart", 2, "--batch-size", 256
    )
    job = processes.job(60)
    wait_until(
        lambda: (
            (processes.model_dir / "controller_server_addr.txt").exists() or cli.poll() is not None
        )
    )
    wait_until(lambda: job.training_status() > 5, 100)
    assert app("suspend") == {"ok": True}
    for service, index in (
        ("worker", 1),
        ("ps", 0),
        ("appmaster", None),
        ("controller", None),
        ("worker", 0),
    ):
        kill_and_wait_for_the_next(cli, service, index)
    wait_until(lambda: job.status().phase == "running")
    assert app("resume") == {"ok": True}
    expected = {"controller": 1, "ps-0": 1, "ps-1": 0, "worker-0": 1, "worker-1": 1, "appmaster": 1}
    # The AppMaster knows what `up` told it last, up to half a second ago.
    wait_until(lambda: restarts(app) == expected, what=f"{expected} in the status")
    end_training(job)
    assert cli.wait(240) == 0, cli.output()
    assert cli.output().count("was killed (signal 9); started again as process") == 5


def small_job(processes, *options):
    """`megalith up` of one ps and one worker, with a model to lose; (process, controller)."""
    task = ("--ps", 1, "--workers", 1, "--batch-size", 128)
    cli = processes.cli("up", "--model-dir", processes.model_dir, *task, *options)
    wait_until(lambda: "Ctrl-C stops everything" in cli.output() or cli.poll() is not None, 100)
    job = processes.job()
    wait_until(lambda: job.training_status() > 5)
    return cli, job


@pytest.mark.parametrize("options", [(), ("--restart", 2)], ids=["no-restart", "restart"])
def test_a_controller_that_is_told_to_stop_is_a_failure_that_says_what_was_not_saved(
    processes, options
):
    cli, _ = small_job(processes, *options)
    os.kill(child(cli, "controller"), signal.SIGTERM)
    assert cli.wait() == 1, cli.output()
    assert "megalith: controller was stopped (signal 15); " in cli.output()
    assert "not saved: steps 0.." in cli.output()
    assert "controller stopped status=143" in cli.output()  # the last lines of its log


def test_what_died_with_up_is_said_by_the_next_one_and_not_by_the_one_after(processes):
    cli, _ = small_job(processes)
    children = children_of(cli.pid)
    cli.kill()
    wait_until(lambda: all(map(is_gone, children)), what="its processes end")
    words = "lost: the job before this one died with the process that ran it; not saved: steps 0.."
    cli, job = small_job(processes)
    assert words in cli.output()
    assert [loss.rows for loss in job.status().losses] == [0]
    cli.signal(signal.SIGTERM)
    assert cli.wait() == 0
    assert "stopping; saved: " in cli.output()
    assert not (
        processes.model_dir / "controller_last_words.txt"
    ).exists()  # this one has said it itself


@pytest.mark.timeout(600)  # three starts, each of which may have to compile kernels
def test_a_worker_and_a_ps_that_are_told_to_stop_are_started_again(processes):
    cli, job = small_job(processes, "--restart", 1)
    for service in ("worker", "ps"):
        victim = child(cli, service, 0)
        os.kill(victim, signal.SIGTERM)
        line = f"{service}-0 was stopped (signal 15); started again as process"
        wait_until(lambda line=line: line in cli.output(), 100, what=line)

    def are_both_back():
        assert cli.poll() is None, cli.output()  # a job that has ended will not come back
        return all(member.is_connected for member in job.status().members)

    # As long as for a first start: both import, and may have to compile their kernels.
    try:
        wait_until(are_both_back, 100, what="both are back")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{job.status()}\n{cli.output()}") from error
    step = job.training_status()
    wait_until(lambda: job.training_status() > step + 5, 100, what="training goes on")


def test_a_ps_that_is_told_to_stop_is_said_with_the_way_out(processes):
    cli, _ = small_job(processes)
    os.kill(child(cli, "ps", 0), signal.SIGTERM)
    wait_until(lambda: "ps-0 was stopped (signal 15); start it again with: " in cli.output())
    assert cli.poll() is None


@pytest.mark.timeout(600)
def test_an_operator_drives_the_application(processes, app):
    cli = processes.cli(
        "up", "--model-dir", processes.model_dir, "--batch-size", 256, "--ps", 1, "--workers", 1
    )
    wait_until(lambda: "Ctrl-C stops everything" in cli.output() or cli.poll() is not None, 100)
    job = processes.job()
    wait_until(lambda: job.training_status() > 5)
    shown = wait_until(
        lambda: is_running(status := app("status")) and status,
        what="the AppMaster knows of the job",
    )
    assert (shown["final_status"], shown["max_restarts"]) == ("UNDEFINED", 0)
    assert {each["name"] for each in shown["processes"]} == {
        "controller",
        "ps-0",
        "worker-0",
        "appmaster",
    }

    saved = app("savepoint", "--wait", "--directory", processes.directory / "there")
    assert (saved["state"], Path(saved["path"]).parent) == (
        "succeeded",
        processes.directory / "there",
    )
    assert "no savepoint '9'" in app("savepoint-status", "9")
    assert "worker-0 runs as process" in app("restart", "worker-0")
    assert "no process 'ps-7'; known are" in app("restart", "ps-7")

    os.kill(child(cli, "worker", 0), signal.SIGKILL)
    wait_until(lambda: "worker-0 was killed (signal 9); start it again with" in cli.output())
    assert app("restart", "worker-0") == {"ok": True}
    wait_until(lambda: child(cli, "worker", 0))
    assert app("restart-policy", 1) == {"ok": True}

    # A controller that hangs does not keep an operator from killing the job.
    processes.pause(child(cli, "controller"))
    assert app("kill", "--reason", "enough", "--exit-code", 3, "--grace-s", 1)["ok"]
    assert cli.wait() == 1
    assert "the job was killed (enough)" in " ".join(cli.output().split())
    assert children_of(cli.pid) == []


@pytest.mark.timeout(600)
@pytest.mark.long
def test_an_appmaster_that_hangs_stops_neither_training_nor_its_end(processes):
    task = ("--ps", 1, "--workers", 1, "--batch-size", 128)
    cli = processes.cli("up", "--model-dir", processes.model_dir, *task)
    job = processes.job(60)
    wait_until(
        lambda: (processes.model_dir / address_file.APPMASTER.name).exists(), 100, "an AppMaster"
    )
    wait_until(lambda: job.training_status() > 5, 100, "training")
    appmaster = child(cli, "appmaster")
    processes.pause(appmaster)
    status, out, err = ctl("--timeout-s", 1, "app", "--model-dir", processes.model_dir, "status")
    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 1
    end_training(job)
    assert cli.wait(240) == 0, cli.output()
    assert is_gone(appmaster)
    (log,) = (processes.model_dir / "logs").glob("controller.log")
    assert "job ended succeeded=True" in log.read_text()


def test_ctl_app_says_what_is_wrong(processes):
    status, out, err = ctl("--timeout-s", 0.2, "app", "--model-dir", processes.directory, "status")
    assert (status, out) == (1, "")
    assert "megalith ctl app status: no appmaster_server_addr.txt in" in err
    status, _, err = ctl("--timeout-s", 0.5, "app", "--appmaster", "127.0.0.1:1", "kill")
    assert status == 1
    assert err.startswith("megalith ctl app kill: appmaster 127.0.0.1:1: ")
    assert ctl("app", "explode")[0] == 2
    assert ctl("app", "restart-policy", "-1")[0] == 2
    _, help_text, _ = ctl("app", "--help")
    for command in (
        "status",
        "kill",
        "succeed",
        "savepoint",
        "suspend",
        "resume",
        "restart-policy",
        "restart",
    ):
        assert command in help_text


def test_the_appmaster_has_metrics_of_its_own(processes):
    processes.start_controller()
    appmaster = processes.start("appmaster", model_dir=processes.model_dir, port=0, metrics_port=0)
    page = (
        urllib.request.urlopen(f"http://{appmaster.reported('metrics')}/metrics", timeout=60)
        .read()
        .decode()
    )
    for metric in (
        "megalith_app_ended 0.0",
        "megalith_app_restarts_total 0.0",
        "megalith_app_last_heartbeat_seconds 0.0",
    ):
        assert metric in page

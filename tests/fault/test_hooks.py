"""Hooks of a user's own in real workers, and when workers train."""

import json
import re

import pytest

from support.processes import Processes, run_cli

HOOKS = '''
import json
import os
from urllib.request import urlopen

from megalith.worker.hooks import Hook, current_worker


class Ledger(Hook):
    """Writes each call to a file of its worker."""

    def say(self, worker, what, **more):
        assert current_worker() is worker
        path = os.path.join(os.environ["LEDGER_DIR"], f"worker-{worker.index}.jsonl")
        with open(path, "a") as file:
            file.write(json.dumps({"what": what, "step": worker.global_step, **more}) + "\\n")

    def begin(self, worker):
        self.say(worker, "begin")

    def before_step(self, worker):
        self.say(worker, "before")

    def after_step(self, worker, done):
        self.say(worker, "after", examples=done.num_examples, loss=done.loss)

    def end(self, worker):
        self.say(worker, "end")


class Clumsy(Hook):
    """Raises before each step, and keeps the metrics page of its worker at the end."""

    def before_step(self, worker):
        raise RuntimeError("the hook is clumsy")

    def end(self, worker):
        for member in worker.cluster.controller.status().members:
            if (member.role, member.index) == ("worker", worker.index):
                page = urlopen(f"http://{member.metrics_address}/metrics", timeout=60).read()
                folder = os.environ["LEDGER_DIR"]
                with open(os.path.join(folder, f"metrics-{worker.index}.txt"), "wb") as file:
                    file.write(page)


class Enough(Hook):
    def after_step(self, worker, done):
        if done.global_step >= 20:
            worker.request_stop("20 steps are enough")


class Broken(Hook):
    def before_step(self, worker):
        if worker.global_step > 3:
            raise RuntimeError("the hook has a bug")
'''


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as started:
        yield started


@pytest.fixture
def hooks_file(tmp_path):
    path = tmp_path / "hooks_of_mine.py"
    path.write_text(HOOKS)
    return path


def train(processes, *options, **environ):
    return run_cli(
        "train",
        "clicks",
        "--model-dir",
        processes.model_dir,
        "--ps",
        1,
        "--workers",
        2,
        "--batch-size",
        500,
        *options,
        environ=environ,
    )


def ledger_of(folder, index):
    text = (folder / f"worker-{index}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_hooks_are_told_of_every_step_of_their_worker_once_and_in_order(
    processes, hooks_file, tmp_path
):
    status, out, err = train(
        processes,
        "--num-examples",
        40_000,
        "--slow-start-steps",
        10,
        "--hooks",
        f"{hooks_file}:Clumsy,{hooks_file}:Ledger",
        "--on-hook-error",
        "go-on",
        LEDGER_DIR=str(tmp_path),
    )
    assert status == 0, out + err
    trained = 0
    raised_in_all = 0
    for index in (0, 1):
        calls = ledger_of(tmp_path, index)
        raised = re.search(
            r"^megalith_hook_errors_total (\S+)$",
            (tmp_path / f"metrics-{index}.txt").read_text(),
            re.MULTILINE,
        )
        assert float(raised[1]) == sum(call["what"] == "before" for call in calls)
        raised_in_all += int(float(raised[1]))
        said = (
            f"worker-{index}: the hook Clumsy.before_step raised RuntimeError: the hook is clumsy"
        )
        assert out.count(f"{said}; training goes on") == 1
        log = (processes.model_dir / "logs" / f"worker-{index}.log").read_text()
        assert "the hook Clumsy.before_step failed; training goes on" in log
        assert "RuntimeError: the hook is clumsy" in log
        whats = [call["what"] for call in calls]
        assert whats[0] == "begin"
        assert whats[-1] == "end"
        assert whats.count("begin") == whats.count("end") == 1
        done = [call for call in calls if call["what"] == "after"]
        assert len(done) == 40  # of 80 batches
        assert whats.count("before") >= len(done)
        assert all(call["loss"] is not None for call in done)
        trained += sum(call["examples"] for call in done)
    assert trained == 40_000
    assert re.search(rf"errors of hooks\W+{raised_in_all}\b", out)
    # 10 * ln 2 = 6: the second worker begins when the first is there
    logs = (processes.model_dir / "logs" / "worker-1.log").read_text()
    assert "waiting for step 6" in logs
    assert int(re.search(r"training begins at step=(\d+)", logs)[1]) >= 6


def test_a_hook_ends_the_shares_of_workers_and_the_job_saves_and_succeeds(processes, hooks_file):
    status, out, err = train(processes, "--hooks", f"{hooks_file}:Enough")
    assert status == 0, out + err
    status, out, _ = run_cli("ckpt", "ls", processes.model_dir, "--json")
    assert status == 0
    (checkpoint,) = json.loads(out)["entries"]
    assert 20 <= checkpoint["step"] < 200


def test_a_hook_that_raises_ends_the_job_and_is_named(processes, hooks_file):
    status, out, err = train(
        processes, "--hooks", f"{hooks_file}:Broken", "--num-examples", 100_000, "--restart", 0
    )
    assert status == 1
    assert "the hook has a bug" in out + err
    assert "raised by the hook Broken.before_step" in out + err


def test_files_of_steps_save_and_end_a_job(processes):
    processes.model_dir.mkdir()
    (processes.model_dir / "dump_20").touch()
    (processes.model_dir / "stop_60").touch()
    status, out, err = train(processes)
    assert status == 0, out + err
    assert "as the file stop_60 says" in out + err
    status, out, _ = run_cli("ckpt", "ls", processes.model_dir, "--json")
    steps = sorted(entry["step"] for entry in json.loads(out)["entries"])
    assert len(steps) == 2
    assert steps[0] >= 20
    assert steps[1] >= 60


def test_a_job_outside_its_hours_trains_nothing_and_succeeds(processes):
    status, out, err = train(processes, "--num-examples", 100_000, "--train-window", "00:00-00:01")
    assert status == 0, out + err
    reason = "these are not the hours of --train-window 00:00-00:01 (UTC)"
    assert f"all workers ended their shares early: {reason}; saved " in out
    assert f"the share ends: {reason}" in "".join(
        path.read_text() for path in (processes.model_dir / "logs").glob("worker-*.log")
    )

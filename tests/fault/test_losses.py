"""What a person at the terminal of `up` and `train` is told: what was restored, saved, lost, and
why it ended."""

import json
import os
import re
import signal
import urllib.request

import pytest

from support.processes import Processes, arguments_of, children_of, run_cli
from support.waiting import wait_until

TASK = """
import numpy as np
from megalith.client import Adagrad, RandomUniform, Segment, TableConfig
from megalith.worker.task import Gradients

class Task:
    tables = (TableConfig("t", (Segment(4, RandomUniform(-1.0, 1.0), Adagrad(0.1)),)),)
    variables = ()
    def __init__(self, fails): self.fails = fails
    def num_batches(self): return 40
    def batch(self, number):
        if self.fails == "batch" and number == 30:
            raise ValueError("malformed row")  # the line
        return np.arange(number * 100, number * 100 + 500)
    def num_examples(self, batch): return len(batch)
    def ids(self, batch): return {"t": batch}
    def gradients(self, batch, rows, variables):
        return Gradients(loss=0.5, rows={"t": np.ones_like(rows["t"])}, variables={})
    def evaluate(self, read):
        if self.fails == "evaluate":
            raise ValueError("no such column")  # the line
        return {"answer": 42.0}

def make(fails): return lambda **options: Task(fails)
well, bad_batch, bad_evaluate = make(""), make("batch"), make("evaluate")
"""


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as processes:
        yield processes


def words(text):
    return " ".join(text.split())


def rows_of(output, table="rows"):
    return int(re.search(rf"([\d,]+) {table}", output).group(1).replace(",", ""))


@pytest.mark.parametrize(
    ("task", "why"), [("bad_batch", "malformed row"), ("bad_evaluate", "no such column")]
)
def test_a_task_that_raises_loses_no_model_and_its_own_line_is_shown(processes, task, why):
    (processes.directory / "mine.py").write_text(TASK)
    line = next(n for n, text in enumerate(TASK.splitlines(), 1) if why in text)
    environ = {"PYTHONPATH": str(processes.directory)}
    shape = ("--model-dir", processes.model_dir, "--ps", 1, "--workers", 1)
    status, out, err = run_cli("train", f"mine:{task}", *shape, environ=environ)
    assert status == 1
    saved = [path.parent.name for path in processes.model_dir.glob("model.ckpt-*/manifest.json")]
    assert len(saved) == 1
    assert f"mine.py:{line} in {task.removeprefix('bad_')}" in words(err)
    assert f'mine.py", line {line}' in err  # and the traceback
    assert f"training failed: {why}" in words(err)
    assert f"saved {processes.model_dir}/{saved[0]}" in words(err)
    # It goes on from there, and the terminal says so.
    status, out, err = run_cli("train", "mine:well", *shape, environ=environ)
    assert status == 0, err
    assert f"restored {processes.model_dir}/{saved[0]}: step " in words(out)
    assert rows_of(out[out.index("restored") :]) >= 500


def losses_of_ps(job):
    """A push that was on its way to a killed ps is a loss of its own, said of the worker."""
    return [loss.what for loss in job.status().losses if loss.what.startswith("ps-0 ")]


def test_rows_that_went_down_with_a_ps_are_said_counted_and_measured(processes):
    cli = processes.cli(
        "up",
        "--model-dir",
        processes.model_dir,
        "--restart",
        2,
        "--ps",
        1,
        "--workers",
        1,
        "--batch-size",
        256,
        "--save-every-s",
        0,
    )
    wait_until(lambda: "Ctrl-C stops everything" in cli.output() or cli.poll() is not None)
    assert "no saves are planned" in cli.output()
    assert "nothing was restored on 1 ps: there is no checkpoint" in cli.output()
    job = processes.job()
    wait_until(lambda: job.training_status() > 50)
    job.stop()
    wait_until(lambda: not job.block_status()[1])
    held = wait_until(lambda: (now := job.status().members[0].rows) > 0 and now)
    victim = next(pid for pid in children_of(cli.pid) if "megalith.ps" in arguments_of(pid))
    os.kill(victim, signal.SIGKILL)
    status = wait_until(
        lambda: (now := job.status()).losses and now, what="the loss is in the status"
    )
    assert status.rows_lost >= held
    sentence = status.losses[0].what
    assert sentence.startswith(
        "ps-0 was replaced and starts empty, there is no checkpoint. "
        f"Lost: {status.rows_lost:,} rows, 4 tables, 5 variables, all updates. "
    )
    assert re.search(r"Its last report, \d+ s before it was replaced, was of ", sentence)
    wait_until(lambda: f"lost: {sentence}" in cli.output(), what="it is on the terminal")
    _, shown, _ = run_cli("ctl", "--model-dir", processes.model_dir, "status")
    assert sentence in shown
    assert f"{status.rows_lost:,} rows" in shown
    described = json.loads(
        run_cli("ctl", "--model-dir", processes.model_dir, "--json", "status")[1]
    )
    assert described["rows_lost"] == status.rows_lost
    log = (processes.model_dir / "logs" / "controller.log").read_text()
    metrics = re.search(r"controller serving address=\S+ metrics=(\S+)", log).group(1)
    page = urllib.request.urlopen(f"http://{metrics}/metrics", timeout=20).read().decode()
    assert f"\nmegalith_rows_lost_total {float(status.rows_lost)}\n" in page

    # From an older checkpoint: what came after it is lost, and is said with the checkpoint's step.
    job.resume()
    step = job.training_status()
    wait_until(lambda: job.training_status() > step + 20)
    saved = job.save()
    wait_until(lambda: job.training_status() > saved.step + 20)
    victim = next(pid for pid in children_of(cli.pid) if "megalith.ps" in arguments_of(pid))
    os.kill(victim, signal.SIGKILL)
    first, second = wait_until(
        lambda: len(of_ps := losses_of_ps(job)) == 2 and of_ps, what="the second loss"
    )
    assert f"starts from checkpoint {saved.path} (step {saved.step}, saved " in second
    assert "all updates since. " in second
    wait_until(lambda: f"lost: {second}" in cli.output())
    restored = f"restored {saved.path}: step {saved.step}, {saved.rows:,} rows on 1 ps"
    wait_until(lambda: restored in cli.output(), what="it is said after the loss")

    # A controller that is started again still knows; and what was trained is saved at the end.
    controller = next(
        pid for pid in children_of(cli.pid) if "megalith.controller" in arguments_of(pid)
    )
    os.kill(controller, signal.SIGKILL)
    wait_until(lambda: "controller was killed (signal 9); started again" in cli.output())
    wait_until(lambda: job.status().phase == "running")
    assert losses_of_ps(job) == [first, second]
    assert cli.output().count("lost: ps-0") == 2
    cli.signal(signal.SIGINT)
    assert cli.wait() == 0
    assert re.search(rf"saving the steps {saved.step}\.\.\d+ since {saved.path}", cli.output())
    assert re.search(r"stopping; saved: \S+/model\.ckpt-\d+", cli.output())


def test_app_kill_says_killed_why_and_what_is_not_saved_on_the_terminal_of_up(processes):
    cli = processes.cli(
        "up", "--model-dir", processes.model_dir, "--ps", 1, "--workers", 1, "--batch-size", 256
    )
    wait_until(lambda: "Ctrl-C stops everything" in cli.output() or cli.poll() is not None)
    job = processes.job()
    wait_until(lambda: job.training_status() > 10)
    app = ("ctl", "--model-dir", processes.model_dir, "app")
    wait_until(lambda: run_cli(*app, "kill", "--reason", "wrong data")[0] == 0)
    assert cli.wait() == 1
    assert "the job failed: killed: wrong data; not saved: steps 0.." in cli.output()


def test_a_killed_controller_ends_up_with_what_is_not_saved(processes):
    cli = processes.cli(
        "up", "--model-dir", processes.model_dir, "--ps", 1, "--workers", 1, "--batch-size", 256
    )
    wait_until(lambda: "Ctrl-C stops everything" in cli.output() or cli.poll() is not None)
    job = processes.job()
    wait_until(lambda: job.training_status() > 10)
    controller = next(
        pid for pid in children_of(cli.pid) if "megalith.controller" in arguments_of(pid)
    )
    os.kill(controller, signal.SIGKILL)
    assert cli.wait() == 1
    assert "controller was killed (signal 9)" in cli.output()
    # The last steps that it has heard of; a busy machine may not have let it hear of any.
    assert re.search(
        r"megalith: not saved: ((steps 0\.\.\d+|pushes) of this job: )?there is no checkpoint",
        cli.output(),
    )


def test_failing_saves_are_on_the_terminal_once_and_their_recovery_too(processes):
    cli = processes.cli(
        "up", "--model-dir", processes.model_dir, "--ps", 1, "--workers", 1, "--batch-size", 256
    )
    wait_until(lambda: "Ctrl-C stops everything" in cli.output() or cli.poll() is not None)
    job = processes.job()
    wait_until(lambda: job.training_status() > 10)
    blocked = processes.directory / "a-file"
    blocked.touch()
    for _ in range(2):
        with pytest.raises(Exception, match="a-file"):
            job.save(str(blocked))
    wait_until(lambda: "a save failed: " in cli.output())
    job.save()
    wait_until(lambda: "saves work again: " in cli.output())
    assert cli.output().count("a save failed: ") == 1

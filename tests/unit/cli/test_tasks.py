"""A task that workers would not find is refused before anything is started."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import megalith.tasks
from megalith.cli import tasks
from megalith.cli.app import app
from megalith.cli.train import tried_task
from megalith.cli.train.tried_task import refuse_unusable
from megalith.runner.config import RunnerConfig
from support.processes import is_gone
from support.waiting import wait_until

OWN = "your own: package.module:factory or path/to/file.py:Class"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [("train",), ("up", "--task")])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nosuch", f"nosuch is no task; use clicks, ctr, or {OWN}"),
        ("clikcs", "clikcs is no task; did you mean clicks?"),
        ("auc", f"auc is no task; use clicks, ctr, or {OWN}"),
        ("my_task.py", f"my_task.py is no task; use clicks, ctr, or {OWN}"),
        ("my_task.py:T", "my_task.py:T is no task: there is no file my_task.py"),
        ("my.task:T", "my.task:T is no task: there is no module my.task here, and none is installed"),
        (":T", ":T is no task: there is no module  here, and none is installed"),
    ],
)  # fmt: skip
def test_an_unknown_task_is_one_line_and_leaves_no_folder(here, command, name, why):
    done = CliRunner().invoke(app, [*command, name], prog_name="megalith")
    line = " ".join(f"megalith {command[0]}: {why}".split())
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"{line}\n")
    assert list(here.iterdir()) == []


def test_a_task_in_the_working_directory_or_installed_is_not_refused_and_not_imported(here):
    (here / "my_task.py").write_text("raise SystemExit('imported')")
    (here / "folder").mkdir()
    (here / "folder" / "inner.py").write_text("raise SystemExit('imported')")
    for name in ("my_task.py:T", "my_task:T", "folder.inner:T", "folder/inner.py:T", "json:loads"):
        tasks.refuse_unknown(name)


GOOD = """
class MyTask:
    def __init__(self, *, batch_size, num_examples, seed, days=7): ...


def examples(table): ...
"""


def refused(*words):
    """What a command says in its one line, before it starts anything."""
    done = CliRunner().invoke(app, [*words, "--model-dir", "model"], prog_name="megalith")
    assert (done.exit_code, done.stdout) == (2, "")
    assert not Path("model").exists()
    line, end, more = done.stderr.partition("\n")
    assert (end, more) == ("\n", "")
    return line.removeprefix(f"megalith {words[0]}: ")


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        (GOOD, "Wrong", "no such task (my_task.py has no Wrong; known are MyTask, examples);"),
        (GOOD, "MyTaks", "no such task (my_task.py has no MyTaks; did you mean MyTask?);"),
        ("classs MyTask: ...", "MyTask", "it does not import: SyntaxError: invalid syntax"),
        ("import no_such_library", "MyTask", "it does not import: ModuleNotFoundError: No module"),
        ("x = 1\ny = x / 0", "MyTask", "it does not import: ZeroDivisionError: division by zero"),
        ("raise SystemExit('no GPU')", "MyTask", "it does not import: SystemExit: no GPU"),
        ("print('loud')\nMyTask = 3", "MyTask", "it does not take the keywords ['batch_size', "),
    ],
)
def test_a_task_that_its_file_does_not_give_is_one_line_before_anything_is_started(
    here, text, name, why
):
    (here / "my_task.py").write_text(text)
    assert refused("train", f"my_task.py:{name}").startswith(f"--task=my_task.py:{name}: {why}")


def test_up_refuses_such_a_task_too(here):
    (here / "my_task.py").write_text(GOOD)
    assert "my_task.py has no Wrong;" in refused("up", "--task", "my_task.py:Wrong")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("my_task.py:MyTask", "did you mean days?"),
        ("clicks", "known are batch_size, num_examples, seed"),
    ],
)
def test_a_keyword_that_the_task_does_not_take_is_refused_with_those_it_takes(here, name, why):
    (here / "my_task.py").write_text(GOOD)
    said = refused("train", name, "--set", "task.dayz=3")
    assert said == f"--task={name}: it does not take the keywords ['dayz']; {why}"


@pytest.mark.parametrize("name", ["my_task.py", "my_task.py:"])
def test_a_file_alone_is_no_task_and_the_line_says_what_to_add(here, name):
    (here / "my_task.py").write_text(GOOD)
    way_out = "name the class or function in it, such as my_task.py:MyTask"
    assert refused("train", name) == f"{name} is no task: {way_out}"


def test_a_task_that_is_used_is_imported_once_elsewhere_and_not_here(here):
    (here / "my_task.py").write_text(f"open('imported', 'a').write('once')\n{GOOD}")
    config = RunnerConfig(model_dir="model", task="my_task.py:MyTask", set="task.days=3")
    refuse_unusable(config)
    assert (here / "imported").read_text() == "once"
    assert "my_task" not in sys.modules


def test_a_task_that_no_worker_trains_is_not_imported(here):
    (here / "my_task.py").write_text("open('imported', 'a')")
    refuse_unusable(RunnerConfig(model_dir="model", task="my_task.py:MyTask", num_workers=0))
    assert not (here / "imported").exists()


def test_an_import_that_takes_too_long_is_left_to_the_workers(here, monkeypatch):
    (here / "my_task.py").write_text("import threading\nthreading.Event().wait()")
    monkeypatch.setattr(tried_task, "_LONGEST_S", 0.5)
    refuse_unusable(RunnerConfig(model_dir="model", task="my_task.py:MyTask"))


BUSY = """
import atexit, os, signal

open("made", "w").close()
atexit.register(os.remove, "made")
child = os.fork()
if not child:
    signal.pause()

with open("child", "w") as file:
    file.write(str(child))
"""


def test_what_a_module_has_begun_ends_with_the_process_that_tried_it(here):
    """Neither does anybody wait for a process that it has started: it may run for ever."""
    (here / "my_task.py").write_text(BUSY + GOOD)
    said = refused("train", "my_task.py:Wrong")
    assert "my_task.py has no Wrong" in said
    assert not (here / "made").exists()
    child = int((here / "child").read_text())
    wait_until(lambda: is_gone(child), what="the process that the module has started ends")


def test_a_trial_ends_with_the_command_that_is_killed(here):
    waits = "import os, threading\nopen('pid', 'w').write(str(os.getpid()))\n"
    (here / "my_task.py").write_text(waits + "threading.Event().wait()\n")
    words = ["train", "my_task.py:MyTask", "--model-dir", "model"]
    command = subprocess.Popen([sys.executable, "-m", "megalith", *words])
    pid = wait_until(lambda: (here / "pid").exists() and (here / "pid").read_text())
    command.kill()
    command.wait()
    wait_until(lambda: is_gone(int(pid)), what="the trial ends")


def test_the_list_of_tasks_is_what_the_folder_of_tasks_has():
    folder = Path(megalith.tasks.__file__).parent
    made = {path.stem for path in folder.glob("*.py") if "def make_task(" in path.read_text()}
    assert made == set(tasks.TASKS)

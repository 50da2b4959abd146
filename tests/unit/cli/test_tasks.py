"""A task that workers would not find is refused before anything is started."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import megalith.tasks
from megalith.cli import tasks
from megalith.cli.app import app

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


def test_the_list_of_tasks_is_what_the_folder_of_tasks_has():
    folder = Path(megalith.tasks.__file__).parent
    made = {path.stem for path in folder.glob("*.py") if "def make_task(" in path.read_text()}
    assert made == set(tasks.TASKS)

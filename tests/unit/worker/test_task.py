import pytest

from megalith.errors import InvalidSetting
from megalith.worker.config import TaskSettings
from megalith.worker.task import load_task

OPTIONS = {"batch_size": 4, "num_examples": 8, "seed": 1}


def test_a_task_is_found_by_name_or_by_module():
    assert load_task("clicks", OPTIONS).num_batches() == 2
    assert load_task("megalith.tasks.clicks:make_task", OPTIONS).num_batches() == 2


@pytest.mark.parametrize(
    "name", ["clikcs", "no.such.module:make", "megalith.tasks.clicks:nothing", ":x"]
)
def test_an_unknown_task_is_refused_by_name(name):
    with pytest.raises(InvalidSetting, match=f"--task={name}: no such task"):
        load_task(name, OPTIONS)


def test_a_factory_of_another_kind_is_refused():
    with pytest.raises(InvalidSetting, match="--task=json:loads: it does not take the keywords"):
        load_task("json:loads", OPTIONS)


@pytest.mark.parametrize(
    "bad",
    [{"batch_size": 0}, {"num_examples": -1}, {"num_examples": 10, "batch_size": 20}, {"seed": -1}],
)
def test_impossible_settings_are_refused(bad):
    with pytest.raises(InvalidSetting):
        TaskSettings(**bad)


def test_a_task_is_found_by_the_path_of_its_file(tmp_path):
    (tmp_path / "beside_my_task.py").write_text("DAYS = 3\n")
    path = tmp_path / "my_own_task.py"
    path.write_text(
        "from beside_my_task import DAYS\n\n\n"
        "class MyTask:\n"
        "    def __init__(self, batch_size, num_examples, seed, more=0):\n"
        "        self.days = DAYS + more\n"
    )
    assert load_task(f"{path}:MyTask", {**OPTIONS, "more": 4}).days == 7
    with pytest.raises(InvalidSetting, match=r"it does not take the keywords .*unknown"):
        load_task(f"{path}:MyTask", {**OPTIONS, "unknown": 4})
    with pytest.raises(InvalidSetting, match=r"no such task \(there is no file .*nothing.py\)"):
        load_task(f"{tmp_path}/nothing.py:MyTask", OPTIONS)


def test_a_module_that_does_not_import_is_named_with_its_line(tmp_path):
    path = tmp_path / "broken_task.py"
    path.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(
        InvalidSetting, match=r"does not import: ZeroDivisionError: .*broken_task.py:2"
    ):
        load_task(f"{path}:MyTask", OPTIONS)


def test_options_of_a_task_are_a_json_object():
    told = TaskSettings(batch_size=5, task_options='{"days": 7}').keywords()
    assert told == {"batch_size": 5, "num_examples": 0, "seed": 1, "days": 7}
    with pytest.raises(InvalidSetting, match="--task-options=7: expected a JSON object"):
        TaskSettings(task_options="7")
    with pytest.raises(InvalidSetting, match=r"--task-options={: no JSON"):
        TaskSettings(task_options="{")

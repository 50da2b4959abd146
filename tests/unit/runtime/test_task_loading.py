import pytest
from click.testing import CliRunner

from megalith.cli.app import app
from megalith.errors import InvalidSetting
from megalith.runner.config import RunnerConfig
from megalith.runtime.task_loading import load_task
from megalith.worker.config import TaskSettings

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


def test_a_class_without_an_init_of_its_own_is_refused_with_the_init_that_it_needs():
    words = r"needs def __init__\(self, \*, batch_size, num_examples, seed\)"
    with pytest.raises(InvalidSetting, match=words):
        load_task("megalith.tasks.api:FeatureTask", OPTIONS)


def test_a_file_with_the_name_of_another_module_is_refused(tmp_path):
    path = tmp_path / "json.py"
    path.write_text("class MyTask: ...\n")
    with pytest.raises(InvalidSetting, match=r"json is the name of another module, .*rename"):
        load_task(f"{path}:MyTask", OPTIONS)


def test_a_module_that_does_not_import_is_named_with_its_line(tmp_path):
    path = tmp_path / "broken_task.py"
    path.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(
        InvalidSetting, match=r"does not import: ZeroDivisionError: .*broken_task.py:2"
    ):
        load_task(f"{path}:MyTask", OPTIONS)


def test_a_module_that_needs_another_one_is_there_and_the_other_one_is_named(tmp_path):
    path = tmp_path / "needy_task.py"
    path.write_text("import no_such_module\n")
    with pytest.raises(InvalidSetting) as refused:
        load_task(f"{path}:MyTask", OPTIONS)

    message = str(refused.value)
    assert "it does not import: ModuleNotFoundError: No module named 'no_such_module'" in message
    assert f"({path}:1 in <module>)" in message
    assert "no such task" not in message


def test_options_of_a_task_are_a_json_object():
    told = TaskSettings(batch_size=5, task_options='{"days": 7}').keywords()
    assert told == {"batch_size": 5, "num_examples": 0, "seed": 1, "days": 7}
    with pytest.raises(InvalidSetting, match="--task-options=7: expected a JSON object"):
        TaskSettings(task_options="7")
    with pytest.raises(InvalidSetting, match=r"--task-options={: no JSON"):
        TaskSettings(task_options="{")


def test_a_task_that_cannot_be_made_is_named_with_its_line(tmp_path):
    path = tmp_path / "unmade_task.py"
    path.write_text("def make(**options):\n    return len(5)\n")
    with pytest.raises(InvalidSetting, match=r"cannot be made: TypeError: .*unmade_task.py:2"):
        load_task(f"{path}:make", OPTIONS)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with a task that it has registered."""
    (tmp_path / "some_package.py").write_text("def make(**options):\n    return options\n")
    about = tmp_path / "some_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: some-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[megalith.tasks]\nratings = some_package:make\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_task_is_found_by_the_name_that_a_package_has_registered(installed):
    assert load_task("ratings", {"seed": 3}) == {"seed": 3}
    done = CliRunner().invoke(app, ["tasks"], prog_name="megalith")
    assert "some_package:make, of some-package" in done.output


def test_params_override_goes_before_all_other_keywords():
    settings = TaskSettings(
        seed=5, task_options='{"days": 7, "rate": 0.1}', params_override='{"rate": 0.2, "seed": 6}'
    )
    keywords = settings.keywords()
    assert (keywords["days"], keywords["rate"], keywords["seed"]) == (7, 0.2, 6)
    for bad in ("{", "[1]"):
        with pytest.raises(InvalidSetting, match="--params-override="):
            TaskSettings(params_override=bad)

    config = RunnerConfig(
        model_dir="x", set="task.rate=0.1", params_override='{"rate": 0.2}', task="ctr"
    )
    told = config.settings_of("worker")
    assert TaskSettings(task_options=told["task_options"], params_override=told["params_override"])
    assert told["params_override"] == '{"rate": 0.2}'

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

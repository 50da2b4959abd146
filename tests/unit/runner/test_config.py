"""RunnerConfig: where values come from, what is refused, and that every field really reaches its
services."""

import dataclasses
import json

import click
import pytest

from megalith.errors import InvalidSetting
from megalith.runner import plan
from megalith.runner.config import PREFIX, SERVICES, RunnerConfig
from megalith.runtime.config import settings
from megalith.runtime.config.command_line import SettingsCommand

ENVIRON = {
    "MEGALITH_RUNNER_NUM_PS": "3",
    "MEGALITH_RUNNER_SEED": "5",
    "MEGALITH_RUNNER_TASK": "env",
}


def test_code_wins_over_flags_over_environment_over_defaults():
    config = RunnerConfig.load(environ=ENVIRON, flags={"num_ps": "4", "seed": "6"}, num_ps=5)
    assert (config.num_ps, config.seed, config.task, config.num_workers) == (5, 6, "env", 2)


def test_a_default_given_in_code_wins_too():
    assert RunnerConfig.load(environ=ENVIRON, flags={"num_ps": "4"}, num_ps=2).num_ps == 2


def parse(argv, environ=None, **settings):
    """The configuration of a command with these arguments."""
    seen = []
    command = SettingsCommand(
        "train", RunnerConfig, seen.append, environ or {}, prefix=PREFIX, help="", **settings
    )
    command.main(argv, prog_name="megalith train", standalone_mode=False)
    return seen[0]


def test_a_command_s_own_default_loses_to_the_environment():
    config = parse(["--ps=4"], ENVIRON, defaults=lambda: {"num_examples": 5000, "seed": 7})
    assert (config.num_ps, config.seed, config.num_examples) == (4, 5, 5000)


def test_the_task_may_come_first_but_not_twice():
    assert parse(["mine:make", "--workers", "1"], positional="task").task == "mine:make"
    assert parse(["--task", "mine:make"], positional="task").task == "mine:make"
    with pytest.raises(click.UsageError, match="'mine:make': --task=other is given as well"):
        parse(["mine:make", "--task=other"], positional="task")


BAD = {
    "a count": ({"num_ps": 0}, "--num-ps=0: outside 1..1024"),
    "a negative count": ({"num_workers": -1}, "--num-workers=-1: below 0"),
    "a text for a number": ({"num_ps": "2"}, "num_ps='2': expected a whole number"),
    "a truth for a number": ({"num_ps": True}, "num_ps=True: expected a whole number"),
    "a fraction": ({"batch_size": 2.5}, "batch_size=2.5: expected a whole number"),
    "a time": ({"silence_s": 0.0}, "--silence-s=0.0: must be above 0"),
    "not a time": ({"heartbeat_s": float("nan")}, "--heartbeat-s=nan: must be above 0"),
    "a word": ({"log_level": "loud"}, "--log-level=loud: expected debug"),
    "no directory": ({"model_dir": ""}, "--model-dir='': the job needs a directory"),
    "an unknown name": ({"num_psss": 1}, "num_psss is not a setting; did you mean num_ps?"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_is_refused_with_field_and_value(case):
    code, message = BAD[case]
    with pytest.raises(InvalidSetting) as raised:
        RunnerConfig.load(environ={}, **code)
    assert message in str(raised.value)


def test_an_unknown_flag_or_variable_is_refused():
    with pytest.raises(InvalidSetting, match="nmu_ps is not a setting; did you mean num_ps"):
        RunnerConfig.load(environ={}, flags={"nmu_ps": "1"})
    with pytest.raises(InvalidSetting, match="did you mean MEGALITH_RUNNER_NUM_PS"):
        RunnerConfig.load(environ={"MEGALITH_RUNNER_NUM_SP": "1"})


def test_a_changed_copy_is_checked_again():
    with pytest.raises(InvalidSetting, match="--num-ps=2000: outside"):
        dataclasses.replace(RunnerConfig(), num_ps=2000)


@pytest.mark.parametrize("field", dataclasses.fields(RunnerConfig), ids=lambda field: field.name)
def test_every_field_reaches_a_service_that_has_it_with_the_same_type(field):
    is_of_up_itself = field.name in ("num_replicas", "save_on_exit", "set", "sync", "collective")
    assert bool(field.metadata["reaches"]) != is_of_up_itself
    for service in field.metadata["reaches"]:
        types = {leaf.name: leaf.type for leaf in settings.leaves(SERVICES[service])}
        assert types[field.name] is field.type, service


def test_a_plan_has_every_process_once_with_settings_that_its_service_takes():
    config = RunnerConfig(model_dir="m", num_ps=3, num_workers=2, batch_size=64, heartbeat_s=0.5)
    processes = [
        plan.controller(config, stay_up=True),
        *plan.members(config),
        plan.appmaster(config, "app-1"),
    ]
    assert [process.name for process in processes] == [
        "controller",
        *(f"ps-{index}" for index in range(3)),
        *(f"worker-{index}" for index in range(2)),
        "appmaster",
    ]
    built = {
        process.name: settings.build(SERVICES[process.service], process.values)
        for process in processes
    }
    assert (
        built["controller"].num_ps,
        built["controller"].num_workers,
        built["controller"].stay_up,
    ) == (3, 2, True)
    assert (built["ps-2"].index, built["ps-2"].membership.heartbeat_s) == (2, 0.5)
    assert (built["worker-1"].index, built["worker-1"].task.batch_size) == (1, 64)
    assert built["appmaster"].model_dir == "m"


def test_set_gives_a_service_a_setting_that_the_job_does_not_have():
    config = RunnerConfig(
        num_workers=0, set="ps.memory_limit_bytes=5 ps.metrics-port=9100 controller.port=7600"
    )
    controller = plan.controller(config, stay_up=False).values
    ps = [process.values for process in plan.members(config)]
    assert (controller["port"], controller["metrics_port"]) == (7600, 0)
    assert [(each["memory_limit_bytes"], each["metrics_port"]) for each in ps] == [
        (5, 9100),
        (5, 9101),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ps.memory_limit_byts=1", "did you mean memory_limit_bytes?"),
        (
            "ps.memory_limit_bytes=much",
            "--set ps.memory_limit_bytes='much': expected a whole number",
        ),
        ("ps.memory_limit_bytes=-1", "--memory-limit-bytes=-1: below 0"),
        ("ps.expire_every_s=5", "--set=ps.expire_every_s=5: write --expire-every-s=5"),
        ("worker.index=5", "--set=worker.index=5: the job decides it"),
        ("wroker.port=5", "--set=wroker.port=5: expected SERVICE.NAME=VALUE"),
        ("port", "--set=port: expected SERVICE.NAME=VALUE"),
    ],
)
def test_a_wrong_set_is_refused(text, message):
    with pytest.raises(InvalidSetting) as raised:
        RunnerConfig(set=text)
    assert message in str(raised.value)


def test_set_may_be_given_several_times():
    config = parse(["--set", "ps.memory_limit_bytes=5", "--set=controller.port=7600"])
    assert config.set == "ps.memory_limit_bytes=5 controller.port=7600"


def test_keywords_of_the_task_are_json_or_text_and_the_last_one_wins():
    told = '{"a": 1, "b": 2}'
    config = parse(
        ["--task-options", told, "--set=task.b=3", "--set", "task.path=day 1", "--set=task.b=[4]"]
    )
    options = config.settings_of("worker")["task_options"]
    assert json.loads(options) == {"a": 1, "b": [4], "path": "day 1"}
    assert parse(["--task-options", told]).settings_of("worker")["task_options"] == told

"""Golden G10, its discovery part: from a RunnerConfig to the back end that each of its processes
opens."""

import json

import pytest

from megalith.errors import InvalidSetting
from megalith.runner import plan
from megalith.runner.config import SERVICES, RunnerConfig
from megalith.runner.wiring import wired
from megalith.runtime.config import settings

MODEL_DIR = "/models/my job"


def opened(discovery, service):
    """What a process of that service opens."""
    config = RunnerConfig(model_dir=MODEL_DIR, discovery=discovery)
    planned = wired(discovery, [plan.controller(config, stay_up=False), *plan.members(config)])
    process = next(process for process in planned if process.service == service)
    built = settings.build(SERVICES[service], process.values)
    return built.discovery.open(process.values["job"], process.values["model_dir"], process.environ)


@pytest.mark.golden("G10")
@pytest.mark.parametrize("service", ["controller", "ps", "worker"])
@pytest.mark.parametrize(
    ("discovery", "back_end"),
    [
        ("none", None),
        ("file:", "FileDiscovery"),
        ("tf-config:", "TfConfigDiscovery"),
        ("consul:", "ConsulDiscovery"),
        ("zookeeper://127.0.0.1:1", "ZooKeeperDiscovery"),
        ("mlp:", "MlpDiscovery"),
        ("static:", "StaticDiscovery"),
    ],
)
def test_the_runner_s_discovery_is_what_every_process_opens(service, discovery, back_end):
    found = opened(discovery, service)
    assert (type(found).__name__ if found else None) == back_end
    if found:
        found.close()


@pytest.mark.golden("G10")
def test_tf_config_says_role_and_index():
    config = RunnerConfig(model_dir=MODEL_DIR, discovery="tf-config:", num_ps=2, num_workers=2)
    planned = wired("tf-config:", [plan.controller(config, stay_up=False), *plan.members(config)])
    tasks = [json.loads(process.environ["TF_CONFIG"])["task"] for process in planned]
    assert tasks[1:] == [
        {"type": "ps", "index": 0},
        {"type": "ps", "index": 1},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    ]


def test_an_unknown_back_end_is_refused_with_those_that_exist():
    with pytest.raises(
        InvalidSetting, match="--discovery=zoo: expected one of none, file, zookeeper, consul"
    ):
        RunnerConfig(discovery="zoo")

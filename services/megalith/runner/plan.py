"""The processes of a job, in the order in which they start, each with its settings."""

from dataclasses import dataclass, field
from typing import Any

from megalith.replica.predicting import task_file
from megalith.runner.config import RunnerConfig

_PORTS = ("port", "metrics_port", "lane_port")


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """`megalith <service>` with `values` as its flags.

    `name` is unique in the job and names its log. `environ` is added to the variables of whoever
    starts it.
    """

    name: str
    service: str
    values: dict[str, Any]
    environ: dict[str, str] = field(default_factory=dict)


def controller(config: RunnerConfig, *, stay_up: bool) -> PlannedProcess:
    """Comes first: the others find each other through it.

    On free ports, unless --set says others, so that jobs of one machine do not meet.
    """
    own = {"stay_up": stay_up, "port": 0, "metrics_port": 0}
    values = own | config.settings_of("controller")
    return PlannedProcess("controller", "controller", values)


def members(config: RunnerConfig) -> list[PlannedProcess]:
    """Parameter servers, then workers, then serving replicas."""
    num_ps = config.num_ps + config.num_extra_ps + config.num_redundant_ps
    planned = []
    for index in range(num_ps):
        planned.append(_member(config, "ps", index))

    for index in range(config.num_workers):
        planned.append(_member(config, "worker", index))

    for index in range(config.num_replicas):
        replica = _member(config, "replica", index)
        # Said by itself: those that find the job by a back end are not told the model directory
        replica.values.setdefault("task_file", f"{config.model_dir}/{task_file.NAME}")
        planned.append(replica)

    return planned


def _member(config: RunnerConfig, service: str, index: int) -> PlannedProcess:
    values = config.settings_of(service)
    values["index"] = index
    for name in _PORTS:
        # Processes of one machine cannot share a port: --set gives that of the first one.
        if values.get(name):
            values[name] += index

    return PlannedProcess(f"{service}-{index}", service, values)


def appmaster(config: RunnerConfig, app_id: str) -> PlannedProcess:
    """The AppMaster of one run of the job, which `app_id` names.

    An AppMaster takes up the state of the same run only.
    """
    own = {"app_id": app_id, "port": 0, "metrics_port": 0}
    values = own | config.settings_of("appmaster")
    return PlannedProcess("appmaster", "appmaster", values)

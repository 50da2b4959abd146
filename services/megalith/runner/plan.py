"""The processes of a job, in the order in which they start, each with its settings."""

from dataclasses import dataclass, field
from typing import Any

from megalith.runner.config import RunnerConfig


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """`megalith <service>` with `values` as its flags; `name` is unique in the job and names its log.

    `environ` is added to the variables of whoever starts it.
    """

    name: str
    service: str
    values: dict[str, Any]
    environ: dict[str, str] = field(default_factory=dict)


def controller(config: RunnerConfig, *, stay_up: bool) -> PlannedProcess:
    """Comes first: the others find each other through it. On free ports, so that jobs of one machine do not meet."""
    own = {"stay_up": stay_up, "port": 0, "metrics_port": 0}
    return PlannedProcess("controller", "controller", config.settings_of("controller") | own)


def members(config: RunnerConfig) -> list[PlannedProcess]:
    """Parameter servers, then workers."""
    num_ps = config.num_ps + config.num_extra_ps + config.num_redundant_ps
    counts = (("ps", num_ps), ("worker", config.num_workers))
    return [
        PlannedProcess(
            f"{service}-{index}", service, config.settings_of(service) | {"index": index}
        )
        for service, count in counts
        for index in range(count)
    ]


def appmaster(config: RunnerConfig, app_id: str) -> PlannedProcess:
    """`app_id` is new for each run of the job: an AppMaster takes up the state of the same one only."""
    own = {"app_id": app_id, "port": 0, "metrics_port": 0}
    return PlannedProcess("appmaster", "appmaster", config.settings_of("appmaster") | own)

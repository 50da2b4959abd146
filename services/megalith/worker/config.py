"""Settings of a worker."""

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from megalith.discovery.settings import DiscoverySettings
from megalith.errors import InvalidSetting
from megalith.runtime.membership import MembershipSettings
from megalith.runtime.sections import FAILURES, TRAINING
from megalith.runtime.server import ServerSettings
from megalith.runtime.setting_checks import check_above_0, check_choices, check_not_below_0
from megalith.runtime.settings import setting

_WIRE_DTYPES = ("float32", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """What is trained."""

    SECTION: ClassVar = TRAINING

    task: str = setting("clicks, ctr, or package.module:factory or file.py:factory.", "clicks")
    batch_size: int = setting(
        "Examples per step; larger steps cost fewer calls and react later.", 2048
    )
    num_examples: int = setting("Examples of all workers together; 0 = train until stopped.", 0)
    max_steps: int = setting(
        "Global step at which training ends; 0 = the examples decide. Workers that are in a step "
        "finish it.",
        0,
    )
    allow_new_layout: bool = setting(
        "Let a table of the checkpoint take other optimizers or another width than it was saved "
        "with. Other optimizers begin anew and weights stay; rows of another width are dropped. "
        "Without it the job stops.",
        False,
    )
    seed: int = setting("Decides the generated data and the initial values.", 1)
    task_options: str = setting(
        "What the task is told beside these settings: keywords of its factory as a JSON object, "
        "for example '{\"days\": 7}'.",
        "",
    )

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InvalidSetting(f"--batch-size={self.batch_size}: below 1")

        is_part_of_a_batch = 0 < self.num_examples < self.batch_size
        if self.num_examples < 0 or is_part_of_a_batch:
            raise InvalidSetting(
                f"--num-examples={self.num_examples}: "
                f"must be 0, or a batch of {self.batch_size} or more"
            )

        check_not_below_0(self, "max_steps", "seed")
        self.options()

    def keywords(self) -> dict[str, Any]:
        """What the task's factory is called with."""
        return {
            "batch_size": self.batch_size,
            "num_examples": self.num_examples,
            "seed": self.seed,
            **self.options(),
        }

    def options(self) -> dict[str, Any]:
        """What --task-options says."""
        try:
            options = json.loads(self.task_options or "{}")
        except ValueError as error:
            raise InvalidSetting(f"--task-options={self.task_options}: no JSON: {error}") from None

        if not isinstance(options, dict):
            raise InvalidSetting(f"--task-options={self.task_options}: expected a JSON object")

        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """How patient a worker is with servers and with other workers."""

    SECTION: ClassVar = FAILURES

    retry_wait_s: float = setting(
        "Seconds to wait before a step that failed for a passing reason is tried again.", 5.0
    )
    max_retries: int = setting(
        "How often a step is tried again after the cluster has changed. Tries while it is "
        "unchanged are not counted.",
        6,
    )
    chief_timeout_s: float = setting(
        "Seconds that the chief waits at the end for the other workers.", 1800.0
    )

    def __post_init__(self) -> None:
        check_not_below_0(self, "max_retries", "retry_wait_s", "chief_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapSettings:
    """How far the steps of a worker overlap."""

    SECTION: ClassVar = TRAINING

    staleness: int = setting(
        "How many of its own steps a worker may run ahead. 0: each step waits for the one before "
        "it. 1: the next batch is pulled while this one is computed. 2: the last push may also "
        "still be on its way.",
        2,
    )
    prefetch_batches: int = setting(
        "Batches that a thread draws from the input ahead of training; 0 = none.", 2
    )

    def __post_init__(self) -> None:
        check_not_below_0(self, "staleness", "prefetch_batches")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSettings:
    """What numbers are between a worker and the servers, which compute in float32."""

    SECTION: ClassVar = TRAINING

    row_dtype: str = setting(
        "How pulled rows travel. float16 is half the bytes.",
        "float32",
        choices=_WIRE_DTYPES,
    )
    gradient_dtype: str = setting(
        "How pushed gradients travel. float16 is half the bytes.",
        "float32",
        choices=_WIRE_DTYPES,
    )

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Run a worker: trains a task; worker-0 is the chief and creates tables."""

    FIRST: ClassVar = ("index", "task", "model_dir", "controller", "batch_size")
    EXAMPLES: ClassVar = (
        "megalith worker --index 1 --model-dir /shared/model",
        "megalith worker --index 1 --controller 10.0.0.5:7600 --task my_package:make_task",
    )

    index: int = setting("Index of this worker, from 0; 0 is the chief.", 0)
    step_timeout_s: float = setting(
        "Seconds that a step may wait for servers that are away before the worker fails.",
        600.0,
        section=FAILURES,
    )
    overlap: OverlapSettings = field(default_factory=OverlapSettings)
    wire: WireSettings = field(default_factory=WireSettings)
    retries: RetrySettings = field(default_factory=RetrySettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    membership: MembershipSettings
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)

    def __post_init__(self) -> None:
        object.__setattr__(self, "membership", self.membership.found_by(self.discovery))
        check_not_below_0(self, "index")
        check_above_0(self, "step_timeout_s")

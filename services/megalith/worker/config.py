"""Settings of a worker."""

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from megalith.collective.choose import COLLECTIVES, OFF
from megalith.discovery.settings import DiscoverySettings
from megalith.errors import InvalidSetting
from megalith.runtime.config.sections import FAILURES, TRAINING
from megalith.runtime.config.setting_checks import check_above_0, check_choices, check_not_below_0
from megalith.runtime.config.settings import setting
from megalith.runtime.day_window import DayWindow
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.rpc.server import ServerSettings
from megalith.worker.hooks.hook_list import ON_ERROR
from megalith.worker.lessons import ON_NAN
from megalith.worker.task import SHARDING, STATIC

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
        "finish it: with n workers it may be n - 1 steps more.",
        0,
    )
    allow_new_layout: bool = setting(
        "Let a table of the checkpoint take other optimizers or another width than it was saved "
        "with. Other optimizers begin anew and weights stay; rows of another width are dropped. "
        "Without it the job stops.",
        False,
    )
    on_nan: str = setting(
        "What happens to a batch whose loss is NaN or infinite. stop: the worker fails, and says "
        "in which step and where in the input. skip: the batch is not trained, and counted.",
        "stop",
        choices=ON_NAN,
    )
    sharding: str = setting(
        "How the input is divided among workers. static: each has a share of its own, decided by "
        "its index. dynamic: the controller hands out files, row groups or batches to whoever asks "
        "for more, and those of a lost worker to others.",
        STATIC,
        choices=SHARDING,
    )
    seed: int = setting("Decides the generated data and the initial values.", 1)
    task_options: str = setting(
        "What the task is told beside these settings: keywords of its factory as a JSON object, "
        "for example '{\"days\": 7}'.",
        "",
    )
    params_override: str = setting(
        "Keywords of the task's factory as a JSON object, which go before all others: before "
        "those of --task-options, of --set and of a job's file.",
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
        check_choices(self)
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
        """What --task-options says, and --params-override over it."""
        options = _json_object("--task-options", self.task_options)
        return options | _json_object("--params-override", self.params_override)


def _json_object(flag: str, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text or "{}")
    except ValueError as error:
        raise InvalidSetting(f"{flag}={text}: no JSON: {error}") from None

    if not isinstance(content, dict):
        raise InvalidSetting(f"{flag}={text}: expected a JSON object")

    return content


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
class InStepSettings:
    """Whether workers take their steps together."""

    SECTION: ClassVar = TRAINING

    dense_sync: str = setting(
        "off: each worker steps at its own pace. Otherwise all workers of the job take each step "
        "together, and worker-0 pushes the mean of their gradients of variables. The workers are "
        "then the ranks of mpirun (mpi), of torchrun (gloo), of horovod or of byteps; auto finds "
        "out which.",
        OFF,
        choices=(OFF, *COLLECTIVES),
    )
    sync_timeout_s: float = setting(
        "Seconds that a rank of synchronous training waits for another one before all of them "
        "fail.",
        300.0,
        section=FAILURES,
    )

    def __post_init__(self) -> None:
        check_above_0(self, "sync_timeout_s")
        check_choices(self)


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
class SummarySettings:
    """What a worker writes for TensorBoard."""

    SECTION: ClassVar = TRAINING

    tensorboard: str = setting(
        "Directory of summaries for TensorBoard, in which each worker has a folder; empty = none. "
        "Needs megalith[tensorboard].",
        "",
    )
    summary_every_steps: int = setting(
        "Steps of a worker between two of its summaries for TensorBoard.", 100
    )

    def __post_init__(self) -> None:
        check_above_0(self, "summary_every_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """What runs beside the steps of a worker, and when it trains."""

    SECTION: ClassVar = TRAINING

    hooks: str = setting(
        "Hooks of your own: package.module:Class or file.py:Class, several with commas between.",
        "",
    )
    on_hook_error: str = setting(
        "What a hook that raises does. stop: the worker fails, and says which hook it was. go-on: "
        "it is logged, counted, and named on the terminal of up and train.",
        "stop",
        choices=ON_ERROR,
    )
    slow_start_steps: int = setting(
        "Worker i begins when the job is at step N * ln(1 + i), so that they join one after the "
        "other; 0 = all begin at once.",
        0,
    )
    slow_start_max_s: float = setting(
        "Seconds after which a worker with a slow start begins in any case, counted from the first "
        "steps of the job, and up to ten minutes more at random.",
        600.0,
    )
    train_window: str = setting(
        "Hours of the day, UTC, in which workers train, like 22:00-06:30: outside them they end "
        "their share, and the job saves and ends. Empty = all day.",
        "",
    )
    figures_every_s: float = setting(
        "Seconds between two lines in a worker's log that say how fast it trains, and in the "
        "chief's how large the tables are; 0 = none.",
        600.0,
    )

    def __post_init__(self) -> None:
        check_not_below_0(self, "slow_start_steps", "slow_start_max_s", "figures_every_s")
        check_choices(self)
        self.window()

    def window(self) -> DayWindow | None:
        """The hours in which workers train; None = all day."""
        if not self.train_window:
            return None

        return DayWindow.parse(self.train_window, "--train-window")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Run a worker: trains a task; worker-0 is the chief and creates tables."""

    FIRST: ClassVar = ("index", "task", "model_dir", "controller", "batch_size")
    EXAMPLES: ClassVar = (
        "megalith worker --index 1 --model-dir /shared/model",
        "megalith worker --index 1 --controller 10.0.0.5:7600 --task my_package:make_task",
        "mpirun -n 4 megalith worker --dense-sync mpi --model-dir /shared/model",
    )

    index: int = setting(
        "Index of this worker, from 0; 0 is the chief. If it is not given, mpirun's "
        "OMPI_COMM_WORLD_RANK is taken, and with --dense-sync torchrun's RANK.",
        0,
        fallback="OMPI_COMM_WORLD_RANK",
    )
    step_timeout_s: float = setting(
        "Seconds that a step may wait for servers that are away before the worker fails.",
        600.0,
        section=FAILURES,
    )
    overlap: OverlapSettings = field(default_factory=OverlapSettings)
    in_step: InStepSettings = field(default_factory=InStepSettings)
    wire: WireSettings = field(default_factory=WireSettings)
    retries: RetrySettings = field(default_factory=RetrySettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    summaries: SummarySettings = field(default_factory=SummarySettings)
    hooks: HookSettings = field(default_factory=HookSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    membership: MembershipSettings
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)

    def __post_init__(self) -> None:
        object.__setattr__(self, "membership", self.membership.found_by(self.discovery))
        check_not_below_0(self, "index")
        check_above_0(self, "step_timeout_s")

"""Settings of a worker."""

from dataclasses import dataclass, field

from megalith.runtime.discovery.settings import DiscoverySettings
from megalith.runtime.membership import MembershipSettings
from megalith.runtime.server import ServerSettings
from megalith.runtime.settings import setting
from megalith.wire.errors import InvalidSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """What is trained."""

    task: str = setting("clicks, or package.module:factory of your own.", "clicks")
    batch_size: int = setting(
        "Examples per step; larger steps cost fewer calls and react later.", 2048
    )
    num_examples: int = setting("Examples of all workers together; 0 = train until stopped.", 0)
    max_steps: int = setting(
        "Global step at which training ends; each other worker may take one step more. 0 = the examples decide.",
        0,
    )
    seed: int = setting("Decides the generated data and the initial values.", 1)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InvalidSetting(f"--batch-size={self.batch_size}: below 1")
        if self.num_examples < 0 or 0 < self.num_examples < self.batch_size:
            raise InvalidSetting(
                f"--num-examples={self.num_examples}: must be 0, or a batch of {self.batch_size} or more"
            )
        if self.max_steps < 0:
            raise InvalidSetting(f"--max-steps={self.max_steps}: below 0")
        if self.seed < 0:
            raise InvalidSetting(f"--seed={self.seed}: below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """How patient a worker is with servers and with other workers."""

    retry_wait_s: float = setting(
        "Seconds to wait before a step that failed for a passing reason is tried again.", 5.0
    )
    max_retries: int = setting(
        "Tries of one step after the cluster changed; while it is unchanged tries are not counted.",
        6,
    )
    chief_timeout_s: float = setting(
        "Seconds that the chief waits at the end for the other workers.", 1800.0
    )

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise InvalidSetting(f"--max-retries={self.max_retries}: below 0")
        for name in ("retry_wait_s", "chief_timeout_s"):
            if not getattr(self, name) >= 0:
                raise InvalidSetting(f"--{name.replace('_', '-')}={getattr(self, name)}: below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapSettings:
    """How far the steps of a worker overlap."""

    staleness: int = setting(
        "Own steps whose pushes a pull may miss; 1 pulls ahead, 2 also pushes behind, 0 = synchronous.",
        2,
    )
    prefetch_batches: int = setting("Batches drawn ahead by a thread of their own; 0 = none.", 2)

    def __post_init__(self) -> None:
        for name in ("staleness", "prefetch_batches"):
            if getattr(self, name) < 0:
                raise InvalidSetting(f"--{name.replace('_', '-')}={getattr(self, name)}: below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSettings:
    """What numbers are between a worker and the servers, which compute in float32."""

    row_dtype: str = setting(
        "Of pulled rows on the wire: float32, or float16 for half the bytes.", "float32"
    )
    gradient_dtype: str = setting("Of pushed gradients on the wire: float32 or float16.", "float32")

    def __post_init__(self) -> None:
        for name in ("row_dtype", "gradient_dtype"):
            if getattr(self, name) not in ("float32", "float16"):
                raise InvalidSetting(
                    f"--{name.replace('_', '-')}={getattr(self, name)}: expected float32 or float16"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Run a worker: trains a task against the cluster; worker 0 is the chief and creates tables."""

    index: int = setting("Index of this worker, from 0; 0 is the chief.", 0)
    step_timeout_s: float = setting(
        "Seconds that a step may wait for servers that are away before the worker fails.", 600.0
    )
    overlap: OverlapSettings = field(default_factory=OverlapSettings)
    wire: WireSettings = field(default_factory=WireSettings)
    retries: RetrySettings = field(default_factory=RetrySettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    membership: MembershipSettings
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)

    def __post_init__(self) -> None:
        self.membership.check_with(self.discovery)
        if self.index < 0:
            raise InvalidSetting(f"--index={self.index}: below 0")
        if not self.step_timeout_s > 0:
            raise InvalidSetting(f"--step-timeout-s={self.step_timeout_s}: must be above 0")

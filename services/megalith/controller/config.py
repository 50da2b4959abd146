"""Settings of the controller."""

from dataclasses import dataclass, field

from megalith.runtime.server import ServerSettings
from megalith.runtime.settings import setting
from megalith.wire.errors import InvalidSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerServerSettings(ServerSettings):
    """Everyone looks for the controller, so its ports are known ones."""

    port: int = setting("Port to bind; 0 takes a free one and reports it.", 7600)
    metrics_port: int = setting("Port of the /metrics page; 0 takes a free one.", 7601)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Run the controller: membership, routing map, barrier, checkpoints, end of job."""

    model_dir: str = setting("Directory of the job: checkpoints and the controller's address.")
    num_ps: int = setting("Parameter servers in the cluster.", 1)
    num_workers: int = setting("Workers in the cluster; 0 = only SDK clients train.", 1)
    silence_s: float = setting(
        "A member silent for this long has lost its place; shorter heals faster, longer forgives pauses.", 10.0
    )
    lost_worker_s: float = setting("A lost worker that nobody replaces counts as finished after this long.", 300.0)
    save_timeout_s: float = setting("Longest time that a save may take.", 3600.0)
    stay_up: bool = setting("Go on serving after the last worker is done, until told to exit.", False)
    server: ControllerServerSettings = field(default_factory=ControllerServerSettings)

    def __post_init__(self) -> None:
        if not 1 <= self.num_ps <= 1024:
            raise InvalidSetting(f"--num-ps={self.num_ps}: outside 1..1024")
        if self.num_workers < 0:
            raise InvalidSetting(f"--num-workers={self.num_workers}: below 0")
        for name in ("silence_s", "lost_worker_s", "save_timeout_s"):
            if not getattr(self, name) > 0:
                raise InvalidSetting(f"--{name.replace('_', '-')}={getattr(self, name)}: must be above 0")

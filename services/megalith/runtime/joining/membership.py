"""How a ps or worker finds the cluster that it joins, and for how long it looks."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from megalith.discovery.settings import DiscoverySettings
from megalith.errors import InvalidSetting
from megalith.runtime.config.sections import JOINING
from megalith.runtime.config.setting_checks import check_above_0
from megalith.runtime.config.settings import setting
from megalith.runtime.joining.presence import Presence

# A member is given up after three; one that reports less often would never be missed.
MAX_HEARTBEAT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSettings:
    """How a ps or worker finds and keeps its controller."""

    SECTION: ClassVar = JOINING

    controller: str = setting(
        "host:port of the controller; empty = ask --discovery, then the model directory.", ""
    )
    model_dir: str = setting(
        "Directory of the job; the controller's address is looked up here.", ""
    )
    job: str = setting(
        "Name of the job to join; a controller of another one is refused. Empty = any.", ""
    )
    heartbeat_s: float = setting(
        "Seconds between reports; shorter notices a hung process earlier.", 1.0
    )
    join_timeout_s: float = setting(
        "Seconds to look for the controller at start before giving up.", 30.0
    )
    rejoin_timeout_s: float = setting(
        "Seconds to wait for a lost controller to come back before giving up.", 600.0
    )

    def __post_init__(self) -> None:
        check_above_0(self, "heartbeat_s", "join_timeout_s", "rejoin_timeout_s")
        if self.heartbeat_s > MAX_HEARTBEAT_S:
            raise InvalidSetting(f"--heartbeat-s={self.heartbeat_s}: above {MAX_HEARTBEAT_S:.0f}")

    @property
    def model_name(self) -> str:
        """What metrics are tagged with; empty if only the controller's address is known."""
        return self.job or Path(self.model_dir).name

    def open_presence(self, name: str, index: int, discovery: DiscoverySettings) -> Presence:
        """How this process finds its controller and is found itself."""
        back_end = discovery.open(self.job, self.model_dir)
        return Presence(name, index, back_end, self.controller, self.model_dir)

    def found_by(self, discovery: DiscoverySettings) -> Self:
        """These settings with the job's name, which the URL of --discovery may say.

        InvalidSetting if nothing says where to join.
        """
        if not self.controller and not self.model_dir and not discovery.is_used:
            raise InvalidSetting(
                "neither --controller nor --model-dir is given, nor --discovery; "
                "one of them must say where to join"
            )

        return replace(self, job=discovery.check(self.job, self.model_dir))

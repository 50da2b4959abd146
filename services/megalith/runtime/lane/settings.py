"""Settings of the bulk lane."""

from dataclasses import dataclass
from typing import ClassVar

from megalith.errors import InvalidSetting
from megalith.runtime.config.sections import TRAFFIC
from megalith.runtime.config.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """What the bulk lane of a ps lets its peers take."""

    SECTION: ClassVar = TRAFFIC

    lane_connections: int = setting(
        "Connections of the bulk lane at once, a thread each. Clients beyond them are served by "
        "unary calls.",
        4096,
    )
    lane_connections_per_peer: int = setting(
        "Connections of the bulk lane at once from one machine.", 2048
    )
    lane_hello_s: float = setting(
        "Seconds that a new connection of the bulk lane has to show its token.", 5.0
    )
    lane_stall_s: float = setting(
        "Seconds that a client has for each megabyte of a request before its connection is closed.",
        10.0,
    )
    lane_reply_s: float = setting(
        "Seconds that a client may leave a reply unread, and has for each megabyte of it.", 30.0
    )
    room_wait_s: float = setting(
        "Seconds that a data request waits for room under --max-inflight-bytes before it is "
        "refused as overloaded; clients then try again.",
        10.0,
    )

    def __post_init__(self) -> None:
        for name in ("lane_connections", "lane_connections_per_peer"):
            value = getattr(self, name)

            if value < 1:
                flag = name.replace("_", "-")
                raise InvalidSetting(f"--{flag}={value}: at least 1 is needed")

        for name in ("lane_hello_s", "lane_stall_s", "lane_reply_s", "room_wait_s"):
            value = getattr(self, name)

            if not value > 0:
                flag = name.replace("_", "-")
                raise InvalidSetting(f"--{flag}={value}: must be above 0")

"""Settings of a parameter server."""

from dataclasses import dataclass, field
from typing import ClassVar

from megalith.discovery.settings import DiscoverySettings
from megalith.errors import InvalidSetting
from megalith.ps.store.blobs import DEFAULT_MAX_BLOB_BYTES
from megalith.ps.store.replay import DEFAULT_MAX_BYTES, DEFAULT_RETENTION_S, MIN_BYTES
from megalith.ps.syncing.settings import SyncSettings
from megalith.runtime.config.sections import JOINING, LISTENING, ROWS, SERVING, TRAFFIC
from megalith.runtime.config.setting_checks import check_above_0, check_not_below_0
from megalith.runtime.config.settings import setting
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.lane.settings import LaneSettings
from megalith.runtime.rpc.server import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PsConfig:
    """Run a parameter server: tables of embedding rows and dense variables."""

    FIRST: ClassVar = ("index", "model_dir", "controller", "host", "memory_limit_bytes")
    EXAMPLES: ClassVar = (
        "megalith ps --index 1 --model-dir /shared/model",
        "megalith ps --index 1 --controller 10.0.0.5:7600 --host 0.0.0.0",
    )

    index: int = setting("Index of this parameter server, from 0.", 0)
    num_ps: int = setting(
        "Parameter servers it expects in the cluster; 0 = takes what the controller says.", 0
    )
    expire_every_s: float = setting(
        "Seconds between two looks for expired rows; 0 = only when a table is full. A checkpoint "
        "holds expired rows too, and the server that restores it drops them.",
        3600.0,
        section=ROWS,
    )
    expire_on_save: bool = setting(
        "Drop expired rows from memory too, each time that this server has saved.",
        False,
        section=ROWS,
    )
    restore_over_budget: bool = setting(
        "Restore all rows of a table also if its memory budget is too small for them. The table "
        "then takes no new ids until there is room. Without this setting the server does not "
        "start, unless one server held all these rows when they were saved.",
        False,
        section=ROWS,
    )
    bulk_lane: bool = setting(
        "Offer clients the bulk lane beside gRPC; without it every pull and push is unary.",
        True,
        section=LISTENING,
    )
    lane_port: int = setting(
        "Port of the bulk lane; 0 takes a free one, which clients are told.",
        0,
        section=LISTENING,
    )
    max_inflight_bytes: int = setting(
        "Bytes of pulls and pushes that are worked on at once, and as many of their replies. A "
        "request beyond them waits.",
        1 << 30,
        section=TRAFFIC,
    )
    push_memory_bytes: int = setting(
        "Memory for the numbers of applied pushes, by which a repeated push is recognized. While "
        "it is full, new clients are asked to come again later.",
        DEFAULT_MAX_BYTES,
        section=TRAFFIC,
    )
    push_memory_s: float = setting(
        "Seconds after its last push when a client is forgotten. It must be longer than any "
        "client repeats a push.",
        DEFAULT_RETENTION_S,
        section=TRAFFIC,
    )
    memory_limit_bytes: int = setting(
        "Memory of the process above which training is held until an operator resumes it; "
        "0 = no limit.",
        0,
        section=ROWS,
    )
    delta_every_s: float = setting(
        "Seconds between two versions that serving replicas are sent. Shorter is fresher, and "
        "costs this server more time.",
        0.25,
        section=SERVING,
    )
    dense_every_s: float = setting(
        "Seconds after which serving replicas are sent dense variables again, if they changed; "
        "0 = with every version. In training all of them change all the time.",
        1.0,
        section=SERVING,
    )
    replica_memory_s: float = setting(
        "Seconds that what changes is kept for a replica that has gone. One that stays away "
        "longer is sent all rows when it comes back.",
        600.0,
        section=SERVING,
    )
    max_replicas: int = setting(
        "Serving replicas that may follow this server at once; each takes a thread.",
        16,
        section=SERVING,
    )
    max_blob_bytes: int = setting(
        "Bytes of all blobs that programs may store on this server. One beyond them is refused.",
        DEFAULT_MAX_BLOB_BYTES,
        section=ROWS,
    )
    stay_up: bool = setting(
        "Go on serving after the job has ended, until told to exit by a signal. The controller has "
        "to stay up too, and says that this server is still there.",
        False,
        section=JOINING,
    )
    lane: LaneSettings = field(default_factory=LaneSettings)
    sync: SyncSettings = field(default_factory=SyncSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    membership: MembershipSettings
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)

    def __post_init__(self) -> None:
        membership = self.membership.found_by(self.discovery)
        object.__setattr__(self, "membership", membership)

        if self.index < 0:
            raise InvalidSetting(f"--index={self.index}: below 0")

        if self.push_memory_bytes < MIN_BYTES:
            raise InvalidSetting(f"--push-memory-bytes={self.push_memory_bytes}: below {MIN_BYTES}")

        if not self.push_memory_s > 0:
            raise InvalidSetting(f"--push-memory-s={self.push_memory_s}: not above 0")

        if self.memory_limit_bytes < 0:
            raise InvalidSetting(f"--memory-limit-bytes={self.memory_limit_bytes}: below 0")

        if not self.expire_every_s >= 0:
            raise InvalidSetting(f"--expire-every-s={self.expire_every_s}: below 0")

        if not 0 <= self.lane_port <= 65535:
            raise InvalidSetting(f"--lane-port={self.lane_port}: outside 0..65535")

        if self.max_blob_bytes < 0:
            raise InvalidSetting(f"--max-blob-bytes={self.max_blob_bytes}: below 0")

        check_not_below_0(self, "dense_every_s")
        check_above_0(self, "delta_every_s", "replica_memory_s", "max_replicas")
        if self.max_inflight_bytes < 1:
            raise InvalidSetting(f"--max-inflight-bytes={self.max_inflight_bytes}: below 1")

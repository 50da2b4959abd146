"""Settings of a serving replica."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from megalith.discovery.settings import DiscoverySettings
from megalith.errors import InvalidSetting
from megalith.replica.predicting import task_file
from megalith.runtime.config.sections import LISTENING, SERVING, TRAFFIC
from megalith.runtime.config.setting_checks import check_above_0, check_not_below_0
from megalith.runtime.config.settings import setting
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.lane.settings import LaneSettings
from megalith.runtime.rpc.server import ServerSettings
from megalith.wire.routing import NUM_BUCKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """Run a serving replica: a read-only copy of the model, kept up to date while it trains."""

    FIRST: ClassVar = ("index", "model_dir", "controller", "replica_shards", "host")
    EXAMPLES: ClassVar = (
        "megalith replica --index 0 --model-dir /shared/model",
        "megalith replica --index 1 --controller 10.0.0.5:7600 --replica-shards 1/2",
        "megalith replica --export model/exported_models",
    )

    index: int = setting("Index of this replica, from 0.", 0)
    replica_shards: str = setting(
        "The share of all ids that this replica holds, as I/N: the I-th of N equal shares, from "
        "0. Empty = all ids.",
        "",
        section=SERVING,
    )
    export: str = setting(
        "Serve this exported model (`megalith export`) instead of a job: the folder of a version, "
        "or one with versions, of which the newest is served.",
        "",
        section=SERVING,
    )
    export_every_s: float = setting(
        "Seconds between two looks for a newer version in the folder of --export.",
        10.0,
        section=SERVING,
    )
    checkpoint: str = setting(
        "Begin rolled back to this checkpoint of the job, by name or path, and stay with it until "
        "`megalith ctl replicas unpin`. Empty = begin with the newest, and follow the job.",
        "",
        section=SERVING,
    )
    alert_staleness_s: float = setting(
        "A replica that is staler than so many seconds says so in its log, its metrics and "
        "`ctl status`.",
        5.0,
        section=SERVING,
    )
    task_file: str = setting(
        "The task.json of the job, by which this replica predicts. Empty = the one in the model "
        "directory, or in the exported model.",
        "",
        section=SERVING,
    )
    bulk_lane: bool = setting(
        "Offer clients the bulk lane beside gRPC; without it every lookup is unary.",
        True,
        section=LISTENING,
    )
    lane_port: int = setting(
        "Port of the bulk lane; 0 takes a free one, which clients are told.",
        0,
        section=LISTENING,
    )
    max_inflight_bytes: int = setting(
        "Bytes of lookups on the bulk lane that are worked on at once, and as many of their "
        "replies. A request beyond them waits.",
        1 << 28,
        section=TRAFFIC,
    )
    lane: LaneSettings = field(default_factory=LaneSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    membership: MembershipSettings
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)

    def __post_init__(self) -> None:
        if self.export:
            self._check_export()
        else:
            object.__setattr__(self, "membership", self.membership.found_by(self.discovery))

        check_not_below_0(self, "index")
        check_above_0(self, "alert_staleness_s", "export_every_s", "max_inflight_bytes")
        if not 0 <= self.lane_port <= 65535:
            raise InvalidSetting(f"--lane-port={self.lane_port}: outside 0..65535")

        self.share()

    def _check_export(self) -> None:
        if self.replica_shards:
            raise InvalidSetting("--replica-shards: a replica with --export holds all ids")
        if self.checkpoint:
            raise InvalidSetting("--checkpoint: a replica with --export serves no checkpoint")
        if self.membership.controller or self.discovery.is_used:
            raise InvalidSetting(
                f"--export={self.export}: a replica serves an exported model or follows a job; "
                "leave --controller and --discovery out"
            )

    def task_path(self) -> Path | None:
        """Where the task of the job that it follows is; None if nobody said."""
        if self.task_file:
            return Path(self.task_file)
        if self.membership.model_dir:
            return Path(self.membership.model_dir, task_file.NAME)

        return None

    def share(self) -> tuple[int, int]:
        """Index and number of shares; (0, 0) = all ids."""
        if not self.replica_shards:
            return 0, 0

        first, slash, second = self.replica_shards.partition("/")
        is_number = first.isdecimal() and second.isdecimal()
        if not (slash and is_number and int(first) < int(second) <= NUM_BUCKETS):
            raise InvalidSetting(
                f"--replica-shards={self.replica_shards}: expected I/N with I from 0 to N-1 and "
                f"N up to {NUM_BUCKETS}, for example 0/2"
            )

        return int(first), int(second)

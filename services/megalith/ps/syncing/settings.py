"""Settings of parameter sync."""

from dataclasses import dataclass
from typing import ClassVar

from megalith.errors import InvalidSetting
from megalith.protos import parameter_sync_pb2 as pb
from megalith.ps.syncing import targets
from megalith.ps.syncing.targets import Target
from megalith.runtime.config.sections import SYNCING
from megalith.runtime.config.setting_checks import check_above_0, check_not_below_0
from megalith.runtime.config.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """Where changed rows are pushed to, for a serving side of Monolith's kind."""

    SECTION: ClassVar = SYNCING

    sync_targets: str = setting(
        "Serving processes (TensorFlow Serving) that get each changed row, as host:port,... "
        "With --sync-num-ps, ps_1@host:port gets shard 1 only.",
        "",
    )
    sync_targets_file: str = setting(
        "A file with targets, one a line, which is read again before each push. While it is empty "
        "the targets stay as they are; a line with # alone removes all. Instead of --sync-targets.",
        "",
    )
    sync_model_name: str = setting(
        "Name of the model on the serving side. Rows go to the model NAME:ps_INDEX; empty = "
        "ps_INDEX.",
        "",
    )
    sync_signature: str = setting(
        "Signature of that model that assigns rows. Each table has two inputs: TABLE_id and "
        "TABLE_value.",
        "hashtable_assign",
    )
    sync_multi_table: str = setting(
        "Name of the multi-table that the serving side has instead of tables. The signature is "
        "then NAME/raw_assign, and all tables, sorted by name, go into its three inputs.",
        "",
    )
    sync_num_ps: int = setting(
        "Shards of the serving side, if it finds the shard of an id as id modulo this number, as "
        "Monolith does. 0 = the ids of this server are those of shard INDEX.",
        0,
    )
    sync_resume: bool = setting(
        "Go on where a target stopped when its connection comes back. Without this it is sent all "
        "rows then, because it may be a new process that has lost what it was sent.",
        False,
    )
    sync_every_s: float = setting("Seconds between the begins of two pushes.", 10.0)
    sync_timeout_ms: int = setting("Milliseconds that a target has to answer a call.", 3000)

    def __post_init__(self) -> None:
        check_above_0(self, "sync_every_s", "sync_timeout_ms")
        check_not_below_0(self, "sync_num_ps")
        if self.sync_targets and self.sync_targets_file:
            raise InvalidSetting(
                "--sync-targets and --sync-targets-file are both given; give one of them"
            )
        if self.is_on:
            self.targets(0)

    @property
    def is_on(self) -> bool:
        return bool(self.sync_targets or self.sync_targets_file)

    def targets(self, index: int) -> list[Target]:
        """Those of the ps of that index, as the setting or the file says now."""
        if self.sync_targets_file:
            return targets.read(self.sync_targets_file, index, self.sync_num_ps)

        return targets.parse(self.sync_targets, "--sync-targets", index, self.sync_num_ps)

    def client_config(self, shard: int, addresses: list[str]) -> pb.ClientConfig:
        """How rows of a shard are pushed, as Monolith's message says it."""
        prefix = f"{self.sync_model_name}:" if self.sync_model_name else ""
        return pb.ClientConfig(
            model_name=f"{prefix}ps_{shard}",
            signature_name=self.sync_signature,
            targets=addresses,
            timeout_in_ms=self.sync_timeout_ms,
        )

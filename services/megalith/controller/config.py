"""Settings of the controller."""

from dataclasses import dataclass, field
from typing import ClassVar

from megalith.checkpoint.starting import choices
from megalith.checkpoint.starting.choices import RestoreChoices
from megalith.controller.saving.tide import Tide
from megalith.discovery.settings import DiscoverySettings
from megalith.errors import InvalidSetting
from megalith.runtime.config.sections import FAILURES, JOINING, ROWS, SAVING, SPARES
from megalith.runtime.config.settings import setting
from megalith.runtime.day_window import DayWindow
from megalith.runtime.rpc.server import ServerSettings

SAVE_EVERY_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerServerSettings(ServerSettings):
    """Everyone looks for the controller, so its ports are known ones."""

    port: int = setting("Port to bind; 0 takes a free one and reports it.", 7600)
    metrics_port: int = setting("Port of the /metrics page; 0 takes a free one.", 7601)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Run the controller: membership, routing map, barrier, checkpoints, end of job."""

    FIRST: ClassVar = ("model_dir", "num_ps", "num_workers", "host", "save_every_s")
    EXAMPLES: ClassVar = (
        "megalith controller --model-dir /shared/model --host 0.0.0.0 --num-ps 4 --num-workers 8",
    )

    model_dir: str = setting("Directory of the job: checkpoints and the controller's address.")
    checkpoint_dir: str = setting(
        "Where the checkpoints are, if not in the model directory: a directory, or a URL of an "
        "object store like s3://bucket/models/ctr. Every ps must reach it too.",
        "",
        section=SAVING,
    )
    num_ps: int = setting("Parameter servers in the cluster.", 1)
    num_workers: int = setting(
        "Workers in the cluster; 0 = only programs that use the SDK train.", 1
    )
    num_extra_ps: int = setting(
        "Further ps that are waited for and measured; the slowest are not used.",
        0,
        section=SPARES,
    )
    num_redundant_ps: int = setting(
        "Further ps that are not waited for; they stand by for those that die.",
        0,
        section=SPARES,
    )
    benchmark_s: float = setting(
        "Seconds that workers measure the ps before training, if there are extra ones.",
        5.0,
        section=SPARES,
    )
    ps_override: str = setting(
        "These ps hold the model, whatever is measured: indices or addresses, in the order of "
        "shards. For example 3,0.",
        "",
        section=SPARES,
    )
    takeover_s: float = setting(
        "Seconds that a lost ps may stay away before one that stands by takes over.",
        30.0,
        section=SPARES,
    )
    silence_s: float = setting(
        "A member silent for this long has lost its seat; shorter heals faster, longer forgives "
        "pauses.",
        10.0,
        section=FAILURES,
    )
    suspect_s: float = setting(
        "A member whose session is lost is suspect for this long, then dead; shorter notices a "
        "loss earlier.",
        5.0,
        section=FAILURES,
    )
    lost_worker_s: float = setting(
        "A lost worker that nobody replaces counts as finished after this long.",
        300.0,
        section=FAILURES,
    )
    health_resume_s: float = setting(
        "After `ctl resume`, training goes on for this long although a ps is over its memory "
        "limit; then it is held again.",
        60.0,
        section=ROWS,
    )
    save_timeout_s: float = setting(
        "Longest time that a save may take.",
        3600.0,
        section=SAVING,
    )
    restore_ckpt: str = setting(
        "Name of the checkpoint to start from, once; empty = the newest.", "", section=SAVING
    )
    restore_dir: str = setting(
        "Model directory of another job to take the first checkpoint from; nothing is copied. "
        "A directory that has checkpoints of its own starts from those.",
        "",
        section=SAVING,
    )
    leave_out_tables: str = setting(
        "Tables of the checkpoint that are not restored, with commas between; their rows are "
        "counted and said. The next save is without them, and later starts restore everything.",
        "",
        section=SAVING,
    )
    clear_nn: bool = setting(
        "Restore rows and no dense variables, once: variables begin anew, and so do steps. Later "
        "starts restore everything.",
        False,
        section=SAVING,
    )
    continue_training: bool = setting(
        "With --clear-nn: steps go on where they were.",
        False,
        section=SAVING,
    )
    variable_aliases: str = setting(
        "Dense variables that have other names than in the checkpoint, once: pairs like new=old "
        "with commas between. Not together with --clear-nn.",
        "",
        section=SAVING,
    )
    restore_dense: str = setting(
        "Path of a checkpoint, dense-only or full, whose dense variables are taken in place of "
        "those beside the rows, once. Later starts restore everything. Not together with "
        "--clear-nn or --variable-aliases.",
        "",
        section=SAVING,
    )
    input_cursors: bool = setting(
        "Save with each checkpoint where the input of each worker is, and go on there. Without it "
        "each start reads the input from its beginning.",
        True,
        section=SAVING,
    )
    input_name: str = setting(
        "What the input is called. If a checkpoint was saved with an input of another name, its "
        "cursors are not used: the input is read from its beginning.",
        "",
        section=SAVING,
    )
    save_hold_s: float = setting(
        "Seconds that a save with --hold waits for all workers to block; then it goes on without "
        "the others.",
        30.0,
        section=SAVING,
    )
    final_save_timeout_s: float = setting(
        "Seconds that a job tries to save when it fails or is told to stop; then it ends unsaved.",
        300.0,
        section=SAVING,
    )
    save_every_s: float = setting(
        "Seconds between two saves by the clock; 0 = none. With --save-every-steps the default "
        "does not count.",
        SAVE_EVERY_S,
        section=SAVING,
    )
    save_every_steps: int = setting(
        "Steps between two saves; 0 = none. Not together with --save-every-s.",
        0,
        section=SAVING,
    )
    tide_window: str = setting(
        "Hours of the day, UTC, in which the settings above decide about saves, like 22:00-06:30; "
        "outside them --tide-save-s does. Empty = all day.",
        "",
        section=SAVING,
    )
    tide_save_s: float = setting(
        "Seconds between two saves outside --tide-window.",
        0.0,
        section=SAVING,
    )
    save_window: str = setting(
        "Hours of the day, UTC, in which planned saves are made, like 18:00-21:00; empty = always. "
        "Increments and saves that somebody asks for are made at any time.",
        "",
        section=SAVING,
    )
    save_only_online: bool = setting(
        "Make planned saves only while the model directory has a file ONLINE.",
        False,
        section=SAVING,
    )
    dense_save_every_s: float = setting(
        "Seconds between two dense-only saves, which write the variables alone to dense_only/ "
        "beside the checkpoints; 0 = none.",
        0.0,
        section=SAVING,
    )
    dense_save_every_steps: int = setting(
        "Steps between two dense-only saves; 0 = none. Not together with --dense-save-every-s.",
        0,
        section=SAVING,
    )
    dense_only_hold: bool = setting(
        "Hold training during each dense-only save.",
        False,
        section=SAVING,
    )
    increment_every_s: float = setting(
        "Seconds between two increments: what changed since the newest checkpoint is saved beside "
        "it, so that a ps that dies loses little more than that; the first planned save of a new "
        "job is due after as many seconds. 0 = none.",
        60.0,
        section=SAVING,
    )
    max_to_keep: int = setting(
        "Checkpoints that are kept, beside those that monolith_checkpoint exempts; with each save "
        "the oldest is removed. 0 = all are kept.",
        10,
        section=SAVING,
    )
    keep_every_n_hours: float = setting(
        "Of the checkpoints that are not kept, one is kept for good every so many hours; 0 = none.",
        24.0,
        section=SAVING,
    )
    action_poll_s: float = setting(
        "Seconds between two looks for a monolith_action file in the model directory; 0 = never. "
        "Unless it is 0, dump_<step>, stop_<step> and limit_req_time there are looked for too.",
        60.0,
        section=SAVING,
    )
    job: str = setting(
        "Name of the job; members of another one are refused. Empty = the model directory.",
        "",
        section=JOINING,
    )
    clear_discovery: bool = setting(
        "At start remove every entry of the job from the discovery back end.",
        False,
        section=JOINING,
    )
    stay_up: bool = setting(
        "Go on serving after the last worker is done, until told to exit.", False
    )
    server: ControllerServerSettings = field(default_factory=ControllerServerSettings)
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)

    def save_hours(self) -> DayWindow | None:
        """The hours of planned saves; None = all day."""
        return DayWindow.parse(self.save_window, "--save-window") if self.save_window else None

    @property
    def saves_dense_only(self) -> bool:
        return self.dense_save_every_s > 0 or self.dense_save_every_steps > 0

    @property
    def restore_choices(self) -> RestoreChoices:
        return choices.parse(
            self.leave_out_tables,
            self.clear_nn,
            self.continue_training,
            self.variable_aliases,
            self.restore_dense,
        )

    def __post_init__(self) -> None:
        self.restore_choices  # noqa: B018  # raises if they contradict each other
        # The URL of --discovery may name the job.
        job = self.discovery.check(self.job, self.model_dir)
        object.__setattr__(self, "job", job)
        if not 1 <= self.num_ps <= 1024:
            raise InvalidSetting(f"--num-ps={self.num_ps}: outside 1..1024")

        for name in ("num_workers", "num_extra_ps", "num_redundant_ps"):
            if getattr(self, name) < 0:
                raise InvalidSetting(f"--{name.replace('_', '-')}={getattr(self, name)}: below 0")

        if self.num_extra_ps and not self.num_workers and not self.ps_override:
            raise InvalidSetting(
                f"--num-extra-ps={self.num_extra_ps}: without workers nobody measures; "
                "give --ps-override"
            )

        if self.ps_override and len(self.ps_override.split(",")) != self.num_ps:
            raise InvalidSetting(
                f"--ps-override={self.ps_override}: --num-ps={self.num_ps} of them must be named"
            )

        if not self.action_poll_s >= 0:
            raise InvalidSetting(f"--action-poll-s={self.action_poll_s}: below 0")
        if not self.increment_every_s >= 0:
            raise InvalidSetting(f"--increment-every-s={self.increment_every_s}: below 0")
        if self.save_every_s < 0 or self.save_every_steps < 0:
            raise InvalidSetting("--save-every-s and --save-every-steps: below 0")

        if self.save_every_steps and self.save_every_s == SAVE_EVERY_S:
            object.__setattr__(self, "save_every_s", 0.0)

        if not (self.dense_save_every_s >= 0 and self.dense_save_every_steps >= 0):
            raise InvalidSetting("--dense-save-every-s and --dense-save-every-steps: below 0")
        if self.dense_save_every_s and self.dense_save_every_steps:
            raise InvalidSetting(
                f"--dense-save-every-s={self.dense_save_every_s} and "
                f"--dense-save-every-steps={self.dense_save_every_steps}: give one of them"
            )
        if self.dense_only_hold and not self.saves_dense_only:
            raise InvalidSetting(
                "--dense-only-hold goes with --dense-save-every-s or --dense-save-every-steps"
            )

        Tide.parse(self.tide_window, self.tide_save_s)
        self.save_hours()
        if not (self.max_to_keep >= 0 and self.keep_every_n_hours >= 0):
            raise InvalidSetting("--max-to-keep and --keep-every-n-hours: below 0")

        if self.save_every_s and self.save_every_steps:
            raise InvalidSetting(
                f"--save-every-s={self.save_every_s} and "
                f"--save-every-steps={self.save_every_steps}: "
                "give one of them"
            )

        for name in (
            "silence_s",
            "suspect_s",
            "lost_worker_s",
            "health_resume_s",
            "save_timeout_s",
            "final_save_timeout_s",
            "save_hold_s",
            "benchmark_s",
            "takeover_s",
        ):
            if not getattr(self, name) > 0:
                raise InvalidSetting(
                    f"--{name.replace('_', '-')}={getattr(self, name)}: must be above 0"
                )

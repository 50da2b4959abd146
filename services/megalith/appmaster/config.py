"""Settings of the AppMaster, which supervises a job; `megalith up --restart` starts one."""

from dataclasses import dataclass, field
from typing import ClassVar

from megalith.discovery.settings import DiscoverySettings
from megalith.errors import InvalidSetting
from megalith.runtime.config.sections import FAILURES, JOINING
from megalith.runtime.config.setting_checks import check_above_0, check_not_below_0
from megalith.runtime.config.settings import setting
from megalith.runtime.rpc.server import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AppMasterServerSettings(ServerSettings):
    """The platform's clients look for the AppMaster, so its ports are known ones."""

    port: int = setting("Port to bind; 0 takes a free one and reports it.", 7610)
    metrics_port: int = setting("Port of the /metrics page; 0 takes a free one.", 7611)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppMasterConfig:
    """Run the AppMaster: supervises a job's processes and answers for it."""

    FIRST: ClassVar = ("model_dir", "controller", "max_restarts", "app_id", "host")
    EXAMPLES: ClassVar = ("megalith appmaster --model-dir /shared/model --max-restarts 3",)

    controller: str = setting(
        "host:port of the controller; empty = ask --discovery, then the model directory.", ""
    )
    model_dir: str = setting(
        "Directory of the job; the controller's address is looked up here.", ""
    )
    job: str = setting(
        "Name of the job in the discovery back end.",
        "",
        section=JOINING,
    )
    app_id: str = setting("The job's id, as status reports it.", "megalith-local")
    max_restarts: int = setting(
        "How often each process that died is started again; 0 = never. "
        "`megalith ctl app restart-policy` changes it.",
        0,
        section=FAILURES,
    )
    state_file: str = setting(
        "File in which the AppMaster remembers its state over a restart; empty = "
        "appmaster_state.json in the model directory, if there is one.",
        "",
    )
    join_timeout_s: float = setting(
        "Seconds to look for the controller before giving up, at start and later.",
        30.0,
        section=JOINING,
    )
    linger_s: float = setting("Seconds to go on answering after the job has ended.", 2.0)
    server: AppMasterServerSettings = field(default_factory=AppMasterServerSettings)
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)

    def __post_init__(self) -> None:
        if not self.controller and not self.model_dir and not self.discovery.is_used:
            raise InvalidSetting(
                "neither --controller nor --model-dir is given, nor --discovery; "
                "one of them must say which job it is"
            )

        # The URL of --discovery may name the job.
        job = self.discovery.check(self.job, self.model_dir)
        object.__setattr__(self, "job", job)
        if not self.app_id:
            raise InvalidSetting("--app-id='': the job needs an id")

        check_not_below_0(self, "max_restarts", "linger_s")
        check_above_0(self, "join_timeout_s")

"""Which discovery back end a process uses, and how it is opened."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megalith.runtime.discovery.files import FileDiscovery
from megalith.runtime.discovery.interface import Discovery
from megalith.runtime.discovery.mlp import MlpDiscovery
from megalith.runtime.discovery.prescribed import StaticDiscovery, TfConfigDiscovery
from megalith.runtime.settings import setting
from megalith.wire.errors import InvalidSetting
from megalith.wire.extras import how_to_install

KINDS = ("none", "file", "zookeeper", "consul", "tf-config", "mlp", "static")

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverySettings:
    """How processes find each other where --controller and the model directory do not say it."""

    discovery: str = setting(f"Back end: {', '.join(KINDS)}.", "none")
    discovery_dir: str = setting(
        "file: the directory that all processes share; empty = discovery/ in --model-dir.", ""
    )
    zk_servers: str = setting(
        "zookeeper: host:port,... of the servers; IPv6 literals in brackets.", "127.0.0.1:2181"
    )
    consul: str = setting(
        "consul: host:port or socket of the agent; empty = CONSUL_HTTP_HOST and its kin.", ""
    )
    static_cluster: str = setting(
        "static: controller=host:port;ps=host:port,...;worker=host:port,...", ""
    )
    discovery_ttl_s: float = setting(
        "Seconds until the entry of a dead process vanishes; 0 = 10 in ZooKeeper, 60 in Consul.",
        0.0,
    )

    def __post_init__(self) -> None:
        if self.discovery not in KINDS:
            raise InvalidSetting(
                f"--discovery={self.discovery}: expected one of {', '.join(KINDS)}"
            )
        if self.discovery == "zookeeper" and not self.zk_servers.strip(", "):
            raise InvalidSetting(
                "--zk-servers is empty; --discovery=zookeeper needs at least one host:port"
            )
        if not self.discovery_ttl_s >= 0:
            raise InvalidSetting(f"--discovery-ttl-s={self.discovery_ttl_s}: below 0")

    @property
    def is_used(self) -> bool:
        return self.discovery != "none"

    def check(self, job: str, model_dir: str) -> None:
        """InvalidSetting if the back end needs a name or a directory that is not given."""
        if self.discovery in ("zookeeper", "consul") and not _JOB.fullmatch(job):
            raise InvalidSetting(
                f"--job={job!r}: --discovery={self.discovery} needs a name of letters, digits, '.', '_' and '-'"
            )
        if self.discovery == "file" and not self.discovery_dir and not model_dir:
            raise InvalidSetting("--discovery=file needs --discovery-dir or --model-dir")

    def open(
        self, job: str, model_dir: str, environ: Mapping[str, str] = os.environ
    ) -> Discovery | None:
        """The back end, or None for "none". It may still be connecting; its first use waits for that."""
        self.check(job, model_dir)
        match self.discovery:
            case "file":
                return FileDiscovery(
                    Path(self.discovery_dir or Path(model_dir) / "discovery").absolute()
                )
            case "zookeeper":
                return self._open_zookeeper(job, environ)
            case "consul":
                return self._open_consul(job, environ)
        return self.open_prescribed(environ)

    def open_prescribed(self, environ: Mapping[str, str] = os.environ) -> Discovery | None:
        """The back end if it is one that prescribes where processes listen; otherwise None."""
        match self.discovery:
            case "tf-config":
                return TfConfigDiscovery(environ.get("TF_CONFIG", ""))
            case "mlp":
                return MlpDiscovery(environ)
            case "static":
                return StaticDiscovery(self.static_cluster)
        return None

    def _open_zookeeper(self, job: str, environ: Mapping[str, str]) -> Discovery:
        try:
            from megalith.runtime.discovery import zookeeper
        except ModuleNotFoundError as error:
            raise _missing("zookeeper", error) from error
        servers = zookeeper.server_list(self.zk_servers, environ)
        return zookeeper.ZooKeeperDiscovery(
            servers,
            job,
            auth=environ.get("ZK_AUTH", ""),
            session_timeout_s=self.discovery_ttl_s or 10.0,
        )

    def _open_consul(self, job: str, environ: Mapping[str, str]) -> Discovery:
        try:
            from megalith.runtime.discovery import consul
        except ModuleNotFoundError as error:
            raise _missing("consul", error) from error
        agent = self.consul or consul.agent_address(environ)
        return consul.ConsulDiscovery(agent, job, ttl_s=self.discovery_ttl_s or 60.0)


def _missing(extra: str, error: ModuleNotFoundError) -> InvalidSetting:
    return InvalidSetting(f"--discovery={extra} needs {error.name}: {how_to_install(extra, error)}")

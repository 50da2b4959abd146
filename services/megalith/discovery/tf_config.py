"""Discovery by the variable `TF_CONFIG`, which lists every process.

It also says which of them this process is. Nothing vanishes.
"""

import json
from typing import Any

from megalith.discovery.back_end import AddressesByService, Opener, Prescription, Site
from megalith.discovery.interface import Assignment
from megalith.discovery.prescribed import PrescribedDiscovery, check_address, opener_by_variables
from megalith.discovery.url import DiscoveryUrl
from megalith.errors import InvalidSetting


class TfConfigDiscovery(PrescribedDiscovery):
    """The cluster as in the variable TF_CONFIG.

    A chief counts as worker-0 and moves the other workers up by one. The cluster may have a
    `controller` entry, which Monolith does not know, because there the chief is the controller.
    Without that entry the model directory says where the controller is.
    """

    def __init__(self, text: str) -> None:
        cluster, self._type, self._task_index = _parse(text)
        controllers = cluster.get("controller", [])
        ps = cluster.get("ps", [])
        chief = cluster.get("chief", [])
        workers = cluster.get("worker", [])

        self._has_chief = bool(chief)

        super().__init__(
            {
                "controller": dict(enumerate(controllers)),
                "ps": dict(enumerate(ps)),
                "worker": dict(enumerate([*chief, *workers])),
            }
        )

    @property
    def server_type(self) -> str:
        """The role of this process; a chief is a worker."""
        return "worker" if self._type == "chief" else self._type

    @property
    def index(self) -> int:
        """The index of this process among those of its role."""
        is_after_chief = self._type == "worker" and self._has_chief
        return self._task_index + (1 if is_after_chief else 0)

    @property
    def address(self) -> str:
        """Where this process must listen."""
        return self._entries[self.server_type][self.index]

    def assignment(self, name: str, index: int) -> Assignment | None:
        if self.server_type == name:
            return Assignment(name, self.index, self.address)
        if name == "controller":
            return None  # started beside the tasks of the platform, which know no such role

        raise InvalidSetting(
            f"TF_CONFIG says that this task is a {self._type}; "
            f"start it as megalith {self.server_type}"
        )


def opener(url: DiscoveryUrl, site: Site) -> Opener:
    """`tf-config:`."""
    return opener_by_variables(
        url, site, lambda environ: TfConfigDiscovery(environ.get("TF_CONFIG", ""))
    )


def prescribe(cluster: AddressesByService, service: str, index: int) -> Prescription:
    task = {"type": service, "index": index}
    config = {"cluster": dict(cluster), "task": task}
    environ = {"TF_CONFIG": json.dumps(config)}
    return Prescription(url="tf-config:", environ=environ)


def _parse(text: str) -> tuple[dict[str, list[str]], str, int]:
    """(addresses by task type, own type, own index), all of them checked."""
    cluster: dict[str, list[str]] = {}
    try:
        config: Any = json.loads(text)

        for kind, listed in config["cluster"].items():
            addresses = [str(address) for address in listed]
            cluster[str(kind)] = addresses

        own_kind = str(config["task"]["type"])
        own_index = int(config["task"]["index"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidSetting(f"TF_CONFIG is not cluster and task as JSON: {error!r}") from error

    for listed in cluster.values():
        for address in listed:
            check_address("TF_CONFIG", address)

    num_tasks = len(cluster.get(own_kind, []))
    if not 0 <= own_index < num_tasks:
        raise InvalidSetting(
            f"TF_CONFIG: task {own_kind} {own_index} is not in the cluster of "
            f"{num_tasks} {own_kind}"
        )

    return cluster, own_kind, own_index

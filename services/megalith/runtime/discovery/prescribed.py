"""Discovery where the platform has written down beforehand who listens where: static flags and TF_CONFIG."""

import json
import threading
from collections.abc import Mapping
from typing import Any

from megalith.runtime import addresses
from megalith.runtime.discovery.interface import NAMES, Assignment, Discovery, Entries
from megalith.wire.errors import InvalidRequest, InvalidSetting


class PrescribedDiscovery(Discovery):
    """A fixed list. Registering checks an address against it; deregistering hides an entry from this process only."""

    def __init__(self, entries: Mapping[str, Entries]) -> None:
        super().__init__()
        self._entries = entries
        self._lock = threading.Lock()  # guards `_hidden`
        self._hidden: set[tuple[str, int]] = set()

    def _register(self, name: str, index: int, address: str) -> None:
        self._check_prescribed(name, index, address)
        with self._lock:
            self._hidden.discard((name, index))

    def _deregister(self, name: str, index: int, address: str) -> None:
        self._check_prescribed(name, index, address)
        with self._lock:
            self._hidden.add((name, index))

    def deregister_all(self) -> None:
        """Hide every entry from this process."""
        with self._lock:
            self._hidden.update(
                (name, index) for name, entries in self._entries.items() for index in entries
            )

    def close(self) -> None:
        """Nothing is held."""

    def _query_all(self) -> dict[str, Entries]:
        with self._lock:
            return {
                name: {
                    index: address
                    for index, address in entries.items()
                    if (name, index) not in self._hidden
                }
                for name, entries in self._entries.items()
            }

    def _check_prescribed(self, name: str, index: int, address: str) -> None:
        expected = self._entries.get(name, {}).get(index)
        if expected is None:
            raise InvalidRequest(
                f"{name} {index} is not in the prescribed cluster of {len(self._entries.get(name, {}))}"
            )
        if address != expected:
            raise InvalidRequest(f"{name} {index} must listen at {expected}, not at {address}")


class StaticDiscovery(PrescribedDiscovery):
    """`controller=h:p;ps=h:p,h:p;worker=h:p`: every process is told all addresses, and listens at its own."""

    def __init__(self, cluster: str) -> None:
        super().__init__(_parse_static(cluster))

    def assignment(self, name: str, index: int) -> Assignment | None:
        address = self._entries.get(name, {}).get(index)
        if address is None:
            raise InvalidSetting(
                f"--static-cluster names no {name} {index}; it must list every process"
            )
        return Assignment(name, index, address)


class TfConfigDiscovery(PrescribedDiscovery):
    """The cluster as in the variable TF_CONFIG.

    A chief counts as worker 0 and moves the other workers up by one. The cluster may have a `controller` entry, which
    the reference, where the chief is the controller, does not know; without it the model directory says where it is.
    """

    def __init__(self, text: str) -> None:
        cluster, self._type, self._task_index = _parse_tf_config(text)
        self._has_chief = bool(cluster.get("chief"))
        workers = [*cluster.get("chief", []), *cluster.get("worker", [])]
        listed = {
            "controller": cluster.get("controller", []),
            "ps": cluster.get("ps", []),
            "worker": workers,
        }
        super().__init__({name: dict(enumerate(entries)) for name, entries in listed.items()})

    @property
    def server_type(self) -> str:
        """The role of this process; a chief is a worker."""
        return "worker" if self._type == "chief" else self._type

    @property
    def index(self) -> int:
        """The index of this process among those of its role."""
        return self._task_index + (1 if self._type == "worker" and self._has_chief else 0)

    @property
    def address(self) -> str:
        """Where this process must listen."""
        return self._entries[self.server_type][self.index]

    def assignment(self, name: str, index: int) -> Assignment | None:
        if self.server_type != name:
            if (
                name == "controller"
            ):  # started beside the tasks of the platform, which know no such role
                return None
            raise InvalidSetting(
                f"TF_CONFIG says that this task is a {self._type}; start it as megalith {self.server_type}"
            )
        return Assignment(name, self.index, self.address)


def _parse_static(cluster: str) -> dict[str, Entries]:
    entries: dict[str, Entries] = {}
    for part in filter(None, (part.strip() for part in cluster.split(";"))):
        name, _, listed = part.partition("=")
        if name not in NAMES or not listed:
            raise InvalidSetting(
                f"--static-cluster: {part!r} is not name=host:port,... with one of {'/'.join(NAMES)}"
            )
        entries[name] = dict(
            enumerate(
                _checked("--static-cluster", address.strip()) for address in listed.split(",")
            )
        )
    if not entries:
        raise InvalidSetting(
            "--static-cluster is not given; it lists every process as name=host:port,host:port;..."
        )
    return entries


def _parse_tf_config(text: str) -> tuple[dict[str, list[str]], str, int]:
    """(addresses by task type, own type, own index), all of them checked."""
    try:
        config: Any = json.loads(text)
        cluster = {
            str(kind): [str(address) for address in listed]
            for kind, listed in config["cluster"].items()
        }
        kind, index = str(config["task"]["type"]), int(config["task"]["index"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidSetting(f"TF_CONFIG is not cluster and task as JSON: {error!r}") from error
    for listed in cluster.values():
        for address in listed:
            _checked("TF_CONFIG", address)
    if not 0 <= index < len(cluster.get(kind, [])):
        raise InvalidSetting(
            f"TF_CONFIG: task {kind} {index} is not in the cluster of {len(cluster.get(kind, []))} {kind}"
        )
    return cluster, kind, index


def _checked(source: str, address: str) -> str:
    try:
        addresses.split(address)
    except InvalidRequest as error:
        raise InvalidSetting(f"{source}: {error}") from None
    return address

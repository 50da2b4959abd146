"""Discovery through the variables that the MLP platform sets for every process of a job."""

import re
import threading
import time
from collections.abc import Callable, Mapping

from megalith.runtime import addresses, liveness
from megalith.runtime.discovery.interface import Assignment, Entries
from megalith.runtime.discovery.prescribed import PrescribedDiscovery
from megalith.wire.errors import DiscoveryFailed, InvalidSetting

_ANY_HOST = ("localhost", "127.0.0.1", "0.0.0.0")
_POLL_S = 1.0


class MlpEnvironment:
    """The MLP_* and MPI_* variables, taken once, without spaces and quotes.

    `MLP_<ROLE>_NUM` makes a role exist. Under MPI a worker's index is its rank, the workers of one machine share its
    entry, and their ports count up from that of worker 0.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._values = {
            key: value.strip(" '\"")
            for key, value in environ.items()
            if key.startswith(("MLP_", "MPI_"))
        }
        self._own_host = addresses.local_host(environ)
        self.role = self.text("MLP_ROLE").upper()
        self.index, self.port = self.number("MLP_ROLE_INDEX"), self.number("MLP_PORT")
        self._count_by_role = {
            match[1]: self.number(key)
            for key in self._values
            if (match := re.fullmatch(r"MLP_([A-Z]+)_NUM", key))
        }
        rank = environ.get("OMPI_COMM_WORLD_RANK")
        self._is_mpi = rank is not None and self.role == "WORKER"
        self._local_size = max(
            1, _number("OMPI_COMM_WORLD_LOCAL_SIZE", environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
        )
        if self._is_mpi:
            self.index = _number("OMPI_COMM_WORLD_RANK", rank or "0")
            self.port += self.index
            self._count_by_role["WORKER"] = _number(
                "OMPI_COMM_WORLD_SIZE", environ.get("OMPI_COMM_WORLD_SIZE", "1")
            )

    @property
    def is_available(self) -> bool:
        return bool(self._values) and bool(self._count_by_role)

    def text(self, key: str) -> str:
        return self._values.get(key, "")

    def number(self, key: str) -> int:
        return _number(key, self._values.get(key) or "0")

    def count(self, role: str) -> int:
        return self._count_by_role.get(role.upper(), 0)

    def address(self, role: str, index: int) -> str:
        """host:port of a process of that role; the primary host where the platform names one."""
        role, entry, port_entry, offset = role.upper(), index, index, 0
        if role == "WORKER" and self._is_mpi:
            entry, port_entry, offset = index // self._local_size, 0, index
        host = self.text(f"MLP_{role}_{entry}_PRIMARY_HOST") or self.text(
            f"MLP_{role}_{entry}_HOST"
        )
        port = self.number(f"MLP_{role}_{port_entry}_PORT") + offset
        if not host or not port:
            raise InvalidSetting(
                f"MLP_{role}_{entry}_HOST or MLP_{role}_{port_entry}_PORT is not set"
            )
        return addresses.join(host, port)

    @property
    def own_hosts(self) -> tuple[str, ...]:
        """Names under which this process may say that it listens."""
        own = f"MLP_{self.role}_{self.index}"
        return tuple(
            filter(
                None, (self._own_host, self.text(f"{own}_HOST"), self.text(f"{own}_PRIMARY_HOST"))
            )
        )


class MlpDiscovery(PrescribedDiscovery):
    """Who listens where as the variables say; a chief counts as worker 0 and moves the others up, as with TF_CONFIG.

    `query("ps")` also waits until every ps accepts connections, for at most `port_timeout_s`; DiscoveryFailed names
    those that do not. `query_all` does not wait.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        port_timeout_s: float = 3600.0,
        probe: Callable[..., liveness.Liveness] = liveness.probe,
    ) -> None:
        self._mlp = MlpEnvironment(environ)
        if not self._mlp.is_available:
            raise InvalidSetting(
                "--discovery=mlp: the MLP_<ROLE>_NUM variables of the platform are not set"
            )
        self._port_timeout_s, self._probe, self._closed = port_timeout_s, probe, threading.Event()
        workers = [*self._listed("chief"), *self._listed("worker")]
        listed = {
            "controller": self._listed("controller"),
            "ps": self._listed("ps"),
            "worker": workers,
        }
        super().__init__({name: dict(enumerate(entries)) for name, entries in listed.items()})

    @property
    def server_type(self) -> str:
        """The role of this process; a chief is a worker."""
        return "worker" if self._mlp.role == "CHIEF" else self._mlp.role.lower()

    @property
    def index(self) -> int:
        """The index of this process among those of its role."""
        return self._mlp.index + (self._mlp.count("chief") if self._mlp.role == "WORKER" else 0)

    @property
    def address(self) -> str:
        """Where this process must listen."""
        return self._mlp.address(self._mlp.role, self._mlp.index)

    def query(self, name: str) -> Entries:
        entries = super().query(name)
        if name == "ps":
            self._wait_for_ports(tuple(entries.values()))
        return entries

    def assignment(self, name: str, index: int) -> Assignment | None:
        if self.server_type == name:
            return Assignment(name, self.index, self.address)
        if (
            name == "controller"
        ):  # started beside the processes of the platform, which may know no such role
            return None
        raise InvalidSetting(
            f"MLP_ROLE says that this is a {self._mlp.role}; start it as megalith {self.server_type}"
        )

    def close(self) -> None:
        self._closed.set()

    def _listed(self, role: str) -> list[str]:
        return [self._mlp.address(role, index) for index in range(self._mlp.count(role))]

    def _check_prescribed(self, name: str, index: int, address: str) -> None:
        """As the list says, except that this process may know itself under another name of its machine."""
        host, port = addresses.split(address)
        if (name, index) == (self.server_type, self.index) and host in (
            *_ANY_HOST,
            *self._mlp.own_hosts,
        ):
            address = addresses.join(addresses.host_of(self.address), port)
        super()._check_prescribed(name, index, address)

    def _wait_for_ports(self, asked: tuple[str, ...]) -> None:
        deadline = time.monotonic() + self._port_timeout_s
        while (dead := self._probe(asked).dead) and not self._closed.is_set():
            if time.monotonic() >= deadline:
                raise DiscoveryFailed(f"{','.join(dead)} connect error!")
            self._closed.wait(_POLL_S)


def _number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidSetting(f"{key}={text!r}: expected a number") from None

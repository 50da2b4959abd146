"""Discovery by the `MLP_*` variables, which the platform sets for every process of a job.

Nothing vanishes.
"""

import re
import threading
import time
from collections.abc import Callable, Mapping

from megalith.discovery import liveness
from megalith.discovery.back_end import AddressesByService, Opener, Prescription, Site
from megalith.discovery.interface import AddressByIndex, Assignment
from megalith.discovery.prescribed import PrescribedDiscovery, opener_by_variables
from megalith.discovery.url import DiscoveryUrl
from megalith.errors import DiscoveryFailed, InvalidSetting
from megalith.wire import addresses

_ANY_HOST = ("localhost", "127.0.0.1", "0.0.0.0")
_POLL_S = 1.0
# Of the platform's data service. Workers read for themselves here, so these have nothing to do; but
# a process of the platform that ends at once counts as one that failed.
_WITHOUT_WORK = ("DISPATCHER", "DSWORKER")


class MlpEnvironment:
    """The MLP_* and MPI_* variables, taken once, without spaces and quotes.

    `MLP_<ROLE>_NUM` makes a role exist. Under MPI a worker's index is its rank, the workers of one
    machine share its entry, and their ports count up from that of worker-0.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._values = {}
        for key, value in environ.items():
            if key.startswith(("MLP_", "MPI_")):
                self._values[key] = value.strip(" '\"")

        self._own_host = addresses.local_host(environ)
        self.role = self.text("MLP_ROLE").upper()
        self.index = self.number("MLP_ROLE_INDEX")
        self.port = self.number("MLP_PORT")

        self._count_by_role = {}
        for key in self._values:
            if match := re.fullmatch(r"MLP_([A-Z]+)_NUM", key):
                self._count_by_role[match[1]] = self.number(key)

        rank = environ.get("OMPI_COMM_WORLD_RANK")
        self._is_mpi = rank is not None and self.role == "WORKER"
        local_size = _number_in(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", "1")
        self._local_size = max(1, local_size)

        if self._is_mpi:
            self.index = _number_in(environ, "OMPI_COMM_WORLD_RANK", "0")
            self.port += self.index

            num_workers = _number_in(environ, "OMPI_COMM_WORLD_SIZE", "1")
            self._count_by_role["WORKER"] = num_workers

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
        role = role.upper()
        entry = index
        port_entry = index
        offset = 0

        if role == "WORKER" and self._is_mpi:
            entry = index // self._local_size
            port_entry = 0
            offset = index

        primary_host = self.text(f"MLP_{role}_{entry}_PRIMARY_HOST")
        host = primary_host or self.text(f"MLP_{role}_{entry}_HOST")
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
        hosts = (
            self._own_host,
            self.text(f"{own}_HOST"),
            self.text(f"{own}_PRIMARY_HOST"),
        )

        return tuple(host for host in hosts if host)


class MlpDiscovery(PrescribedDiscovery):
    """Who listens where as the variables say.

    A chief counts as worker-0 and moves the others up, as with TF_CONFIG.

    `query("ps")` also waits until every ps accepts connections, for at most `port_timeout_s`;
    DiscoveryFailed names those that do not. `query_all` does not wait.
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

        self._port_timeout_s = port_timeout_s
        self._probe = probe
        self._closed = threading.Event()

        workers = [*self._listed("chief"), *self._listed("worker")]
        super().__init__(
            {
                "controller": dict(enumerate(self._listed("controller"))),
                "ps": dict(enumerate(self._listed("ps"))),
                "worker": dict(enumerate(workers)),
            }
        )

    @property
    def server_type(self) -> str:
        """The role of this process; a chief is a worker."""
        return "worker" if self._mlp.role == "CHIEF" else self._mlp.role.lower()

    @property
    def index(self) -> int:
        """The index of this process among those of its role."""
        num_before = self._mlp.count("chief") if self._mlp.role == "WORKER" else 0
        return self._mlp.index + num_before

    @property
    def address(self) -> str:
        """Where this process must listen."""
        return self._mlp.address(self._mlp.role, self._mlp.index)

    @property
    def only_waits_for(self) -> str:
        """Worker 0, for a role of the data service.

        If the platform names an ssh port it is that one, which outlives a restart of the worker.
        """
        if self._mlp.role not in _WITHOUT_WORK:
            return ""

        worker_0 = self._entries["worker"].get(0)
        if worker_0 is None:
            raise InvalidSetting(
                f"MLP_ROLE={self._mlp.role} waits for worker 0, and MLP_WORKER_NUM is not set"
            )

        ssh_port = self._mlp.number("MLP_SSH_PORT")
        if not ssh_port:
            return worker_0

        return addresses.join(addresses.host_of(worker_0), ssh_port)

    def query(self, name: str) -> AddressByIndex:
        entries = super().query(name)
        if name == "ps":
            self._wait_for_ports(tuple(entries.values()))

        return entries

    def assignment(self, name: str, index: int) -> Assignment | None:
        if self.server_type == name:
            return Assignment(name, self.index, self.address)
        if name == "controller":
            return None  # started beside the platform's processes, which may know no such role

        raise InvalidSetting(
            f"MLP_ROLE says that this is a {self._mlp.role}; "
            f"start it as megalith {self.server_type}"
        )

    def close(self) -> None:
        self._closed.set()

    def _listed(self, role: str) -> list[str]:
        indices = range(self._mlp.count(role))
        return [self._mlp.address(role, index) for index in indices]

    def _check_prescribed(self, name: str, index: int, address: str) -> None:
        """As the list says, but this process may know itself under another name of its machine."""
        host, port = addresses.split(address)
        own_names = (*_ANY_HOST, *self._mlp.own_hosts)
        is_own = name == self.server_type and index == self.index

        if is_own and host in own_names:
            listed_host = addresses.host_of(self.address)
            address = addresses.join(listed_host, port)

        super()._check_prescribed(name, index, address)

    def _wait_for_ports(self, asked: tuple[str, ...]) -> None:
        deadline = time.monotonic() + self._port_timeout_s
        while not self._closed.is_set():
            dead = self._probe(asked).dead
            if not dead:
                return
            if time.monotonic() >= deadline:
                listed = ",".join(dead)
                raise DiscoveryFailed(f"{listed} connect error!")

            self._closed.wait(_POLL_S)


def opener(url: DiscoveryUrl, site: Site) -> Opener:
    """`mlp:`."""
    return opener_by_variables(url, site, MlpDiscovery)


def prescribe(cluster: AddressesByService, service: str, index: int) -> Prescription:
    variables = {
        "MLP_ROLE": service,
        "MLP_ROLE_INDEX": str(index),
    }

    for name, listed in cluster.items():
        prefix = f"MLP_{name.upper()}"
        count = len(listed)
        variables[f"{prefix}_NUM"] = str(count)

        for number, address in enumerate(listed):
            host, port = addresses.split(address)
            entry = f"{prefix}_{number}"

            variables[f"{entry}_HOST"] = host
            variables[f"{entry}_PORT"] = str(port)

    return Prescription(url="mlp:", environ=variables)


def _number_in(environ: Mapping[str, str], key: str, default: str) -> int:
    return _number(key, environ.get(key) or default)


def _number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidSetting(f"{key}={text!r}: expected a number") from None

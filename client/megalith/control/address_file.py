"""Where the controller and the AppMaster of a job listen.

Each has a small file in the model directory. Each server writes its own file, atomically, when it
starts to serve.
"""

from dataclasses import dataclass
from pathlib import Path

from megalith.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class AddressFile:
    """The file in which one kind of server says where it listens."""

    name: str
    server: str  # what messages call whoever writes it

    def read(self, model_dir: str | Path) -> str | None:
        """host:port as the last such server wrote it, or None. That server may be gone."""
        path = Path(model_dir) / self.name
        try:
            return path.read_text().strip() or None
        except (FileNotFoundError, NotADirectoryError):
            return None


CONTROLLER = AddressFile("controller_server_addr.txt", "controller")
APPMASTER = AddressFile("appmaster_server_addr.txt", "AppMaster")


def checked(address: str) -> str:
    """An address as a person gave it; InvalidRequest unless it is host:port."""
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
    is_bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not host or not is_port or is_bare_ipv6:
        raise InvalidRequest(
            f"{address!r} is not the address of a controller: "
            "expected host:port, such as 127.0.0.1:7600 or [::1]:7600; "
            "the job's log has it, and `megalith ctl status` shows it. "
            "A model directory is given as model_dir="
        )

    return address

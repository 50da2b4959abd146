"""Where the controller of a model directory listens: one small file, written atomically by the controller."""

from pathlib import Path

from megalith.wire.errors import InvalidRequest

FILE_NAME = "controller_server_addr.txt"


def read(model_dir: str | Path) -> str | None:
    """host:port as the last controller wrote it, or None. That controller may be gone."""
    try:
        return (Path(model_dir) / FILE_NAME).read_text().strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None


def checked(address: str) -> str:
    """An address as a person gave it; InvalidRequest unless it is host:port."""
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
    is_bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not host or not is_port or is_bare_ipv6:
        raise InvalidRequest(
            f"{address!r} is not the address of a controller: expected host:port, such as 127.0.0.1:7600 or "
            "[::1]:7600; the job's log has it, and `megalith ctl status` shows it. "
            "A model directory is given as model_dir="
        )
    return address

"""Why a server cannot listen: whether the host or the port is at fault."""

import socket

from megalith.errors import InvalidSetting
from megalith.runtime.config.settings import flag_of
from megalith.wire import addresses


def cannot_listen(host: str, name: str, port: int) -> InvalidSetting:
    """The error for a port, the setting `name`, that cannot be bound.

    Another port of the same host is tried: if that fails too, the host is to blame.
    """
    bind = addresses.join(host, port)
    try:
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.bind(address)
    except OSError as error:
        return InvalidSetting(
            f"--host={host}: cannot listen on {bind} ({error.strerror}); "
            "give an address of this machine, or 0.0.0.0 for all of them"
        )

    return InvalidSetting(
        f"{flag_of(name)}={port}: cannot listen on {bind}{_reason(str(address[0]), port)}; "
        "choose another port, or 0 for any free one"
    )


def _reason(host: str, port: int) -> str:
    """Why a port cannot be bound, in brackets; gRPC does not say it. Empty if it is free by now."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        with socket.socket(family) as probe:
            probe.bind(address)
    except OSError as error:
        return f" ({error.strerror})"

    return ""

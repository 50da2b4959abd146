"""How the processes of a local job are told who listens where, if no platform tells them."""

from collections.abc import Sequence
from dataclasses import replace

from megalith.discovery.settings import DiscoverySettings
from megalith.runner.free_ports import free_ports
from megalith.runner.plan import PlannedProcess

_HOST = "127.0.0.1"


def wired(discovery: str, planned: Sequence[PlannedProcess]) -> list[PlannedProcess]:
    """The processes, each with the flags or variables by which a platform would tell it.

    Nothing is added for back ends in which processes register themselves, nor if the URL says
    more than its scheme: then it lists the processes itself.
    """
    found_by = DiscoverySettings(discovery=discovery)
    if not found_by.is_prescribed or not discovery.endswith(":"):
        return list(planned)

    ports = free_ports(len(planned), _HOST)
    cluster: dict[str, list[str]] = {}

    for process, port in zip(planned, ports, strict=True):
        addresses = cluster.setdefault(process.service, [])
        addresses.append(f"{_HOST}:{port}")

    told = []

    for process in planned:
        index = process.values.get("index", 0)
        prescribed = found_by.prescribe(cluster, process.service, index)

        values = process.values | {"discovery": prescribed.url}
        environ = dict(prescribed.environ)
        told.append(replace(process, values=values, environ=environ))

    return told

"""Discovery by a list in the URL of who listens where, which every process is told.

Nothing vanishes.
"""

from megalith.discovery.back_end import AddressesByService, Opener, Prescription, Site
from megalith.discovery.interface import NAMES, AddressByIndex, Assignment
from megalith.discovery.prescribed import PrescribedDiscovery, check_address
from megalith.discovery.url import DiscoveryUrl
from megalith.errors import InvalidSetting

_SOURCE = "--discovery=static"


class StaticDiscovery(PrescribedDiscovery):
    """`controller=h:p;ps=h:p,h:p;worker=h:p`: each process is told all, and listens at its own."""

    def __init__(self, cluster: str) -> None:
        super().__init__(_parse(cluster))

    def assignment(self, name: str, index: int) -> Assignment | None:
        address = self._entries.get(name, {}).get(index)
        if address is None:
            raise InvalidSetting(f"{_SOURCE} names no {name}-{index}; it must list every process")

        return Assignment(name, index, address)


def opener(url: DiscoveryUrl, site: Site) -> Opener:
    """`static:controller=host:port;ps=host:port,...;worker=host:port,...`.

    `static:` alone is for a local job, whose processes are then told the list.
    """
    url.refuse_servers()
    url.take_options()
    if url.path:
        _parse(url.path)

    return Opener(open=lambda: StaticDiscovery(url.path), url=url.text, job=site.job)


def prescribe(cluster: AddressesByService, service: str, index: int) -> Prescription:
    parts = []
    for name, addresses in cluster.items():
        listed = ",".join(addresses)
        parts.append(f"{name}={listed}")

    everybody = ";".join(parts)
    return Prescription(url=f"static:{everybody}")


def _parse(cluster: str) -> dict[str, AddressByIndex]:
    entries: dict[str, AddressByIndex] = {}
    for part in cluster.split(";"):
        if not part.strip():
            continue

        name, _, listed = part.strip().partition("=")
        if name not in NAMES or not listed:
            raise InvalidSetting(
                f"{_SOURCE}: {part.strip()!r} is not name=host:port,... "
                f"with one of {'/'.join(NAMES)}"
            )

        if name in entries:
            raise InvalidSetting(
                f"{_SOURCE}: {name} is listed twice; put all its addresses behind one {name}=, "
                "separated by commas"
            )

        addresses = [check_address(_SOURCE, address.strip()) for address in listed.split(",")]
        entries[name] = dict(enumerate(addresses))

    if not entries:
        raise InvalidSetting(
            f"{_SOURCE}: lists nobody; write --discovery "
            "'static:controller=host:port;ps=host:port,host:port;worker=host:port'"
        )

    return entries

"""Which of the measured parameter servers are the best ones."""

from collections.abc import Mapping, Sequence

from megalith.errors import InvalidSetting
from megalith.wire import addresses


def best(rows_per_s: Mapping[str, float], listed: Sequence[str], count: int) -> tuple[str, ...]:
    """The `count` best of `listed`, the best first.

    Servers of one host share its network and cores, so each is credited with the speed of the
    slower ones on its host: the best one of a host stands for the whole host. Of equals the one
    listed first wins. The host is taken from the last colon on, so that IPv6 addresses are grouped
    too; Monolith cuts at the first.
    """
    speed = {address: rows_per_s.get(address, 0.0) for address in listed}
    ascending = sorted(listed, key=speed.__getitem__)  # sorting keeps the order of equals
    speed_of_host: dict[str, float] = {}
    credited: dict[str, float] = {}

    for address in ascending:
        host = addresses.host_of(address)
        total = speed_of_host.get(host, 0.0) + speed[address]

        speed_of_host[host] = total
        credited[address] = total

    descending = sorted(listed, key=lambda address: -credited[address])
    return tuple(descending[:count])


def overridden(override: str, address_by_index: Mapping[int, str]) -> tuple[str, ...]:
    """The servers that an operator chose, by index ("3,0") or address ("host:port,host:port")."""
    chosen = []
    for part in override.split(","):
        item = part.strip()
        if not item:
            continue

        if not (item.isascii() and item.isdigit()):
            chosen.append(item)
            continue

        index = int(item)
        if index not in address_by_index:
            raise InvalidSetting(f"--ps-override={override}: ps-{index} is not here")

        chosen.append(address_by_index[index])

    return tuple(chosen)

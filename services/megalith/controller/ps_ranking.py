"""Which of the measured parameter servers are the best ones."""

from collections.abc import Mapping, Sequence

from megalith.runtime import addresses
from megalith.wire.errors import InvalidSetting


def best(rows_per_s: Mapping[str, float], listed: Sequence[str], count: int) -> tuple[str, ...]:
    """The `count` best of `listed`, the best first.

    Servers of one host share its network and cores, so each is credited with the speed of the slower ones on its host:
    the best one of a host stands for the whole host. Of equals the one listed first wins. The host is taken from the
    last colon on, so that IPv6 addresses are grouped too; the reference cuts at the first.
    """
    speed = {address: rows_per_s.get(address, 0.0) for address in listed}
    ascending = sorted(listed, key=lambda address: (speed[address], listed.index(address)))
    credited = dict(speed)
    for place, address in enumerate(ascending):
        host = addresses.host_of(address)
        credited[address] += sum(
            speed[slower] for slower in ascending[:place] if addresses.host_of(slower) == host
        )
    return tuple(
        sorted(listed, key=lambda address: (-credited[address], listed.index(address)))[:count]
    )


def overridden(override: str, address_by_index: Mapping[int, str]) -> tuple[str, ...]:
    """The servers that an operator chose, by index or by address: "3,0" or "host:port,host:port"."""
    chosen = []
    for item in filter(None, (item.strip() for item in override.split(","))):
        if item.isascii() and item.isdigit():
            if int(item) not in address_by_index:
                raise InvalidSetting(f"--ps-override={override}: ps {item} is not here")
            chosen.append(address_by_index[int(item)])
        else:
            chosen.append(item)
    return tuple(chosen)

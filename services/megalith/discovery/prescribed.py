"""What back ends share whose platform has written down beforehand who listens where."""

import threading
from collections.abc import Callable, Mapping

from megalith.discovery.back_end import Opener, Site
from megalith.discovery.interface import AddressByIndex, Discovery
from megalith.discovery.url import DiscoveryUrl
from megalith.errors import InvalidRequest, InvalidSetting
from megalith.wire import addresses


class PrescribedDiscovery(Discovery):
    """A fixed list. Registering checks an address against it.

    Deregistering hides an entry from this process only.
    """

    def __init__(self, entries: Mapping[str, AddressByIndex]) -> None:
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
            for name, entries in self._entries.items():
                self._hidden.update((name, index) for index in entries)

    def close(self) -> None:
        """Nothing is held."""

    def _query_all(self) -> dict[str, AddressByIndex]:
        with self._lock:
            hidden = set(self._hidden)

        found: dict[str, AddressByIndex] = {}
        for name, entries in self._entries.items():
            found[name] = {}
            for index, address in entries.items():
                if (name, index) not in hidden:
                    found[name][index] = address

        return found

    def _check_prescribed(self, name: str, index: int, address: str) -> None:
        entries = self._entries.get(name, {})
        expected = entries.get(index)
        if expected is None:
            raise InvalidRequest(
                f"{name}-{index} is not in the prescribed cluster of {len(entries)}"
            )

        if address != expected:
            raise InvalidRequest(f"{name}-{index} must listen at {expected}, not at {address}")


def check_address(source: str, address: str) -> str:
    """The address; InvalidSetting that names where it comes from if it is not host:port."""
    try:
        addresses.split(address)
    except InvalidRequest as error:
        raise InvalidSetting(f"{source}: {error}") from None

    return address


def opener_by_variables(
    url: DiscoveryUrl, site: Site, from_variables: Callable[[Mapping[str, str]], Discovery]
) -> Opener:
    """For a back end that takes everything from variables: its URL is the scheme alone."""
    url.refuse_servers()
    url.refuse_path()
    url.take_options()
    return Opener(open=lambda: from_variables(site.environ), url=url.text, job=site.job)

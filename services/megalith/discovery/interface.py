"""What every discovery back end offers: who listens where, by name and index."""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass

from megalith.errors import DiscoveryFailed, InvalidRequest
from megalith.wire import addresses

logger = logging.getLogger(__name__)

NAMES = ("controller", "ps", "worker", "replica")

_MAX_DIGITS = 9

AddressByIndex = dict[int, str]


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the platform prescribes for this process: role, index, and where it must listen."""

    name: str
    index: int
    address: str


class Discovery(ABC):
    """A registry of one job: addresses (host:port, an IPv6 host in brackets) by name and index.

    A wrong name, index or address is InvalidRequest; a back end that does not answer is
    DiscoveryFailed. Entries that somebody else wrote and that are no addresses are left out and
    logged once. Thread-safe.
    """

    def __init__(self) -> None:
        self._garbage: set[tuple[str, str]] = set()  # what has been logged already

    def register(self, name: str, index: int, address: str) -> None:
        """Enter this process, in place of whoever has the index.

        Kept until deregister, close or the process's end.
        """
        _check(name, index)
        addresses.split(address)
        self._register(name, index, address)

    def deregister(self, name: str, index: int, address: str) -> None:
        """Remove the entry if it still holds this address; otherwise nothing changes."""
        _check(name, index)
        self._deregister(name, index, address)

    def query(self, name: str) -> AddressByIndex:
        """Entries of that name now, by ascending index; a copy."""
        _check(name, 0)
        found = self._query_all().get(name, {})
        return _by_index(found)

    def query_all(self) -> dict[str, AddressByIndex]:
        """Entries of every name that has some; a copy."""
        found = self._query_all()
        by_name = {}

        for name in NAMES:
            entries = found.get(name)
            if entries:
                by_name[name] = _by_index(entries)

        return by_name

    def assignment(self, name: str, index: int) -> Assignment | None:
        """What is prescribed for a process started as `name` with `index`.

        None where it may choose.
        """
        return None

    @property
    def only_waits_for(self) -> str:
        """The address whose end this process waits for, because its role has no work here.

        Empty for a process that has work.
        """
        return ""

    def clean_up(self) -> None:
        """Remove what jobs that are over left behind, where a back end keeps such things."""
        return None

    @abstractmethod
    def deregister_all(self) -> None:
        """Remove every entry of the job, also those of other processes.

        Prescribed ones are hidden from this one.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up the entries of this object, and every thread and connection.

        Closing twice is safe.
        """

    @abstractmethod
    def _register(self, name: str, index: int, address: str) -> None: ...

    @abstractmethod
    def _deregister(self, name: str, index: int, address: str) -> None: ...

    @abstractmethod
    def _query_all(self) -> dict[str, AddressByIndex]: ...

    def _readable(self, source: str, text: str) -> str | None:
        """The text if it is an address; None, and one log line, if it is not."""
        try:
            addresses.split(text)
        except InvalidRequest as error:
            self._ignore(source, text, str(error))
            return None

        return text

    def _ignore(self, source: str, text: str, why: str) -> None:
        garbage = (source, text)
        if garbage in self._garbage:
            return

        self._garbage.add(garbage)
        logger.warning("ignored an entry that is not ours source=%s: %s", source, why)


def warn_not_renewed(error: Exception, log: logging.Logger) -> None:
    """What a thread that keeps entries alive says of an error; it goes on whatever happens.

    With a traceback if the error is not one that a back end may raise.
    """
    is_expected = isinstance(error, DiscoveryFailed)
    log.warning("own entries are not renewed, trying again: %s", error, exc_info=not is_expected)


def parse_entry(text: str) -> tuple[str, int] | None:
    """`ps.3` as ("ps", 3); None for anything else."""
    name, _, digits = text.rpartition(".")
    index = parse_index(digits)
    if name not in NAMES or index is None:
        return None

    return name, index


def parse_index(text: str) -> int | None:
    """An index as back ends write it, in decimal digits.

    None for anything else, also for digits of other scripts.
    """
    is_index = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if is_index else None


def _by_index(entries: AddressByIndex) -> AddressByIndex:
    return dict(sorted(entries.items()))


def _check(name: str, index: int) -> None:
    if name not in NAMES:
        known = "/".join(NAMES)
        raise InvalidRequest(f"discovery: name must be one of {known}, not {name!r}")

    if index < 0:
        raise InvalidRequest(f"discovery: index {index} of {name} is below 0")

"""A process's part in discovery.

It finds its controller there, has an entry of its own, and may be told where to listen. It is not
in the room of the back ends, because those know neither the controller's file in the model
directory nor the settings of a server.
"""

import dataclasses
import logging
import threading
from typing import TypeVar

import tenacity

from megalith.control import address_file
from megalith.discovery import liveness
from megalith.discovery.interface import Discovery
from megalith.discovery.settings import DiscoverySettings
from megalith.errors import DiscoveryFailed, IndexTaken, InvalidRequest, PeerUnreachable
from megalith.runtime.server import ServerSettings
from megalith.wire import addresses

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=ServerSettings)

_RETRY_S = 5.0  # between two tries to register; training does not wait for it
_JOIN_S = 2.0  # for a registration under way; a hung back end is not waited for


class Presence:
    """Finds the controller, and enters this process in the discovery back end.

    The entry is made once the controller has taken this process in, not earlier: a second process
    with the same index is refused by the controller, and must not replace the entry of the first. A
    back end that is away delays the entry and nothing else.
    """

    def __init__(
        self, name: str, index: int, discovery: Discovery | None, controller: str, model_dir: str
    ) -> None:
        self._name = name
        self._index = index
        self._discovery = discovery
        self._controller = controller
        self._model_dir = model_dir
        self._address = ""
        self._stopping = threading.Event()
        self._entering = threading.Thread(target=self._enter, name="presence", daemon=True)

    def find_controller(self) -> str:
        """Its address now: as given, else from the back end, else from the model directory.

        PeerUnreachable if none.
        """
        if self._controller:
            return self._controller

        looked_at = []

        if self._discovery is not None:
            try:
                address = self._discovery.query("controller").get(0)
                if address:
                    return address

                looked_at.append("no controller is registered")
            except DiscoveryFailed as error:
                looked_at.append(str(error))

        if self._model_dir:
            try:
                if address := address_file.CONTROLLER.read(self._model_dir):
                    return address

                looked_at.append(f"no {address_file.CONTROLLER.name} in {self._model_dir}")
            except (OSError, UnicodeDecodeError) as error:  # a file server that is away, say
                looked_at.append(f"{address_file.CONTROLLER.name} cannot be read: {error}")

        raise PeerUnreachable(f"{' and '.join(looked_at)}; is a controller running?")

    def check_alone(self, address: str) -> None:
        """IndexTaken if another process that lives is registered in this one's seat.

        `address` is our own.
        """
        if self._discovery is None:
            return

        try:
            self._discovery.clean_up()
            other = self._discovery.query(self._name).get(self._index, address)
        except DiscoveryFailed as error:
            logger.warning("cannot see whether another %s is registered: %s", self._name, error)
            return

        if other != address and liveness.probe([other]).are_all_alive:
            raise IndexTaken(
                f"a {self._name} of this job is registered and listens at {other}; "
                "stop it, or choose another --job"
            )

    def announce(self, address: str) -> None:
        """Enter this process, in the background; further calls change nothing."""
        if self._discovery is not None and not self._address:
            self._address = address
            self._entering.start()

    def stop(self) -> None:
        """Take the entry back and close the back end."""
        self._stopping.set()
        if self._entering.is_alive():
            self._entering.join(_JOIN_S)
        if self._discovery is not None:
            self._discovery.close()

    def _enter(self) -> None:
        assert self._discovery is not None
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_worth_another_try),
            wait=tenacity.wait_fixed(_RETRY_S),
            sleep=tenacity.sleep_using_event(self._stopping),
            before_sleep=self._log_first,
            reraise=True,
        )

        try:
            retrying(self._discovery.register, self._name, self._index, self._address)
            logger.info("Started %s %d at %s.", self._name, self._index, self._address)
        except Exception as error:
            if not self._stopping.is_set():
                logger.error("not registered, and not tried again: %s", error)

    def _is_worth_another_try(self, error: BaseException) -> bool:
        return not isinstance(error, InvalidRequest) and not self._stopping.is_set()

    def _log_first(self, attempt: tenacity.RetryCallState) -> None:
        if attempt.attempt_number == 1:
            error = attempt.outcome.exception() if attempt.outcome is not None else None
            unforeseen = None if isinstance(error, DiscoveryFailed) else error
            logger.warning("not registered yet, trying again: %s", error, exc_info=unforeseen)


def assigned(name: str, index: int, server: S, settings: DiscoverySettings) -> tuple[int, S]:
    """Index and address as the platform prescribes them, where it does; otherwise what was given.

    A --host that was given is bound whatever the platform prescribes: it is how others are kept
    out.
    """
    discovery = settings.open_prescribed()
    if discovery is None:
        return index, server

    assignment = discovery.assignment(name, index)
    if assignment is None:
        return index, server

    host, port = addresses.split(assignment.address)
    bind = server.host
    if not bind and not addresses.is_loopback(assignment.address):
        bind = "0.0.0.0"

    prescribed = dataclasses.replace(server, host=bind, port=port, advertise_host=host)
    return assignment.index, prescribed

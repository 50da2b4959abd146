"""A process's part in discovery: where its controller is, where it must listen itself, and its own entry."""

import dataclasses
import logging
import threading
from typing import TypeVar

import tenacity

from megalith.runtime import addresses, liveness
from megalith.runtime.discovery.interface import Discovery
from megalith.runtime.discovery.settings import DiscoverySettings
from megalith.runtime.server import ServerSettings
from megalith.wire import controller_address
from megalith.wire.errors import DiscoveryFailed, IndexTaken, InvalidRequest, PeerUnreachable

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=ServerSettings)

_RETRY_S = 5.0  # between two tries to register; training does not wait for it
_JOIN_S = 2.0  # for a registration under way; a hung back end is not waited for


class Presence:
    """Finds the controller, and enters this process in the discovery back end once the controller has taken it in.

    Not earlier: a second process with the same index is refused by the controller, and must not replace the entry of
    the first. A back end that is away delays the entry and nothing else.
    """

    def __init__(
        self, name: str, index: int, discovery: Discovery | None, controller: str, model_dir: str
    ) -> None:
        self._name, self._index, self._discovery = name, index, discovery
        self._controller, self._model_dir = controller, model_dir
        self._address = ""
        self._stopping = threading.Event()
        self._entering = threading.Thread(target=self._enter, name="presence", daemon=True)

    def find_controller(self) -> str:
        """Its address now: as given, else from the back end, else from the model directory; PeerUnreachable if none."""
        if self._controller:
            return self._controller
        looked_at = []
        if self._discovery is not None:
            try:
                if address := self._discovery.query("controller").get(0):
                    return address
                looked_at.append("no controller is registered")
            except DiscoveryFailed as error:
                looked_at.append(str(error))
        if self._model_dir:
            if address := controller_address.read(self._model_dir):
                return address
            looked_at.append(f"no {controller_address.FILE_NAME} in {self._model_dir}")
        raise PeerUnreachable(f"{' and '.join(looked_at)}; is a controller running?")

    def check_alone(self, address: str) -> None:
        """IndexTaken if another process that lives is registered in this one's place; `address` is our own."""
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
                f"a {self._name} of this job is registered and listens at {other}; stop it, or choose another --job"
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
        try:
            tenacity.Retrying(
                retry=tenacity.retry_if_exception(
                    lambda error: (
                        not isinstance(error, InvalidRequest) and not self._stopping.is_set()
                    )
                ),
                wait=tenacity.wait_fixed(_RETRY_S),
                sleep=tenacity.sleep_using_event(self._stopping),
                before_sleep=self._log_first,
                reraise=True,
            )(self._discovery.register, self._name, self._index, self._address)
            logger.info("Started %s %d at %s.", self._name, self._index, self._address)
        except Exception as error:
            if not self._stopping.is_set():
                logger.error("not registered, and not tried again: %s", error)

    def _log_first(self, attempt: tenacity.RetryCallState) -> None:
        if attempt.attempt_number == 1:
            error = attempt.outcome.exception() if attempt.outcome is not None else None
            unforeseen = None if isinstance(error, DiscoveryFailed) else error
            logger.warning("not registered yet, trying again: %s", error, exc_info=unforeseen)


def assigned(name: str, index: int, server: S, settings: DiscoverySettings) -> tuple[int, S]:
    """Index and address as the platform prescribes them, where it does; otherwise what was given.

    A --host that was given is bound whatever the platform prescribes: it is how others are kept out.
    """
    discovery = settings.open_prescribed()
    assignment = discovery.assignment(name, index) if discovery is not None else None
    if assignment is None:
        return index, server
    host, port = addresses.split(assignment.address)
    bind = server.host
    if not bind and not addresses.is_loopback(assignment.address):
        bind = "0.0.0.0"
    return assignment.index, dataclasses.replace(server, host=bind, port=port, advertise_host=host)

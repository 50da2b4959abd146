"""A process's part in discovery.

It finds its controller there, has an entry of its own, and may be told where to listen. It is not
in the room of the back ends, because those know neither the controller's file in the model
directory nor the settings of a server.
"""

import dataclasses
import logging
import math
import threading
import time
from typing import TypeVar

import tenacity

from megalith.control import address_file
from megalith.discovery import liveness
from megalith.discovery.interface import Discovery
from megalith.discovery.settings import DiscoverySettings
from megalith.errors import DiscoveryFailed, IndexTaken, InvalidRequest, PeerUnreachable
from megalith.runtime.rpc.server import ServerSettings
from megalith.wire import addresses

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=ServerSettings)

_RETRY_S = 5.0  # between two tries to register; training does not wait for it
_JOIN_S = 2.0  # for a registration under way; a hung back end is not waited for
# For the back end to say where the controller is. Well below a lease: a ps that has lost its
# controller must have asked it again before it may believe that there is none.
_LOOK_S = 0.5
_FRESH_S = 5.0  # an answer that nobody waited for is too old after that


class Presence:
    """Finds the controller, and enters this process in the discovery back end.

    The entry is made once the controller has taken this process in, not earlier: a second process
    with the same index is refused by the controller, and must not replace the entry of the first. A
    back end that is away delays the entry and nothing else: while it does not say where the
    controller is, the controller is looked for where it last was. `_looking` guards the look that
    is under way.
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
        self._looking = threading.Lock()
        self._look: _Look | None = None
        self._last_found = ""  # the controller's address; empty = not found yet

        self._stopping = threading.Event()
        self._entering = threading.Thread(target=self._enter, name="presence", daemon=True)

    def find_controller(self) -> str:
        """Its address now: as given, else from the back end, else from the model directory.

        Once it was found, a back end that does not answer in a moment is not waited for. The
        controller is then looked for in the model directory, and where it last was.
        PeerUnreachable if it is in none of these places.
        """
        if self._controller:
            return self._controller

        looked_at: list[str] = []
        last_found = self._last_found
        address = self._registered_controller(looked_at)
        is_silent = address is None
        if not address:
            address = self._written_controller(looked_at)
        if not address and is_silent:
            address = last_found
        if not address:
            raise PeerUnreachable(f"{' and '.join(looked_at)}; is a controller running?")

        self._last_found = address
        return address

    def _registered_controller(self, looked_at: list[str]) -> str | None:
        """Its address as the back end says it; empty = it has none, None = it did not answer."""
        if self._discovery is None:
            return ""

        try:
            if address := self._ask(self._discovery):
                return address

            looked_at.append("no controller is registered")
            return ""
        except DiscoveryFailed as error:
            looked_at.append(str(error))
            return None

    def _ask(self, discovery: Discovery) -> str:
        """Ask the back end for the controller; empty if it has no entry.

        DiscoveryFailed also if it does not answer in a moment. That question stays open, and the
        next call waits for its answer.
        """
        with self._looking:
            if self._look is None or self._look.is_stale:
                self._look = _Look(discovery)

            look = self._look

        if not look.wait(_LOOK_S if self._last_found else None):
            raise DiscoveryFailed(f"the back end has not answered for {look.age_s:.1f} s")

        with self._looking:
            if self._look is look:
                self._look = None

        return look.answer()

    def _written_controller(self, looked_at: list[str]) -> str:
        """Its address as the model directory says it; empty if it does not."""
        if not self._model_dir:
            return ""

        try:
            if address := address_file.CONTROLLER.read(self._model_dir):
                return address

            looked_at.append(f"no {address_file.CONTROLLER.name} in {self._model_dir}")
        except (OSError, UnicodeDecodeError) as error:  # a file server that is away, say
            looked_at.append(f"{address_file.CONTROLLER.name} cannot be read: {error}")

        return ""

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
        if attempt.attempt_number > 1 or attempt.outcome is None:
            return

        error = attempt.outcome.exception()
        unforeseen = None if isinstance(error, DiscoveryFailed) else error
        logger.warning("not registered yet, trying again: %s", error, exc_info=unforeseen)


class _Look:
    """One question to a back end, on a thread of its own: it may hang for longer than we wait."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._began = time.monotonic()

        self._answered_at = math.inf
        self._address = ""
        self._error: Exception | None = None
        self._is_done = threading.Event()

        threading.Thread(target=self._ask, name="find-controller", daemon=True).start()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def is_stale(self) -> bool:
        """Answered so long ago that the answer may be wrong by now."""
        return time.monotonic() - self._answered_at > _FRESH_S

    def wait(self, timeout_s: float | None) -> bool:
        """Until it is answered (True), or the time is over."""
        return self._is_done.wait(timeout_s)

    def answer(self) -> str:
        """The controller's address, empty if it has no entry; raises what asking raised."""
        if self._error is not None:
            raise self._error

        return self._address

    def _ask(self) -> None:
        try:
            self._address = self._discovery.query("controller").get(0, "")
        except Exception as error:
            self._error = error
        finally:
            self._answered_at = time.monotonic()
            self._is_done.set()


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


def only_waits_for(settings: DiscoverySettings) -> str:
    """The address whose end this process waits for; empty for one that has work to do."""
    discovery = settings.open_prescribed()
    return "" if discovery is None else discovery.only_waits_for

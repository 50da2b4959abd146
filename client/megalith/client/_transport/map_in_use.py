"""Which routing map the client uses, and what it knows of the controller that made it."""

import threading
import time
from collections.abc import Callable

from megalith.client._transport.links import Links
from megalith.control import retry
from megalith.control.controller import Controller
from megalith.errors import NotReady, Overloaded, RunUndecided, StaleEpoch
from megalith.wire import forking
from megalith.wire.routing import Routing, check_run

_ASK_MAP_S = 1.0  # one question for a newer map; the one in use stays if there is no answer
# A client that got no answer may use a server without a lease, until it has to ask again. Less than
# the servers' lease: a controller that began to serve after the question names no other server in
# its seat so soon.
_AWAY_S = 2.5
# Who answers so is there and knows who holds which index, though it has no map to give. One that
# does not know yet whether the run goes on (RunUndecided) is as good as none.
_WORDS_OF_A_CONTROLLER = (NotReady, StaleEpoch, Overloaded)


class MapInUse:
    """The newest map that the controller gave. Thread-safe: `_lock` guards everything."""

    def __init__(self, controller: Controller, links: Links) -> None:
        self._controller = controller
        self._links = links

        self._lock = threading.Lock()
        self._routing: Routing | None = None
        self._least_epoch = 0  # a map before it is known to be out of date
        # None: the controller answered when it was last asked.
        self._away_until: float | None = None
        self._is_in_session: Callable[[], bool] | None = None
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        """A forked child keeps the map."""
        self._lock = threading.Lock()
        self._is_in_session = None  # the session is the parent's

    def routing(self) -> Routing:
        """The map in use.

        Asks the controller for the first one, and for one that is known to be newer.
        """
        with self._lock:
            known = self._routing
            must_ask = self._is_question_due()
            if known is not None and known.epoch >= self._least_epoch and not must_ask:
                return known

        return self.refresh()

    def _is_question_due(self) -> bool:
        """Whether the controller must be asked before the next request; `_lock` is held."""
        if self._away_until is None:
            return self._is_cut_off()

        return time.monotonic() >= self._away_until

    def follow_session(self, is_in_session: Callable[[], bool]) -> None:
        """For who is in a session with the controller: `is_in_session` says whether it still is."""
        self._is_in_session = is_in_session

    def _is_cut_off(self) -> bool:
        return self._is_in_session is not None and not self._is_in_session()

    def check_session(self) -> None:
        """NotReady if the session with the controller is lost, although the controller answers.

        Then another process may have the seat of this one.
        """
        if self._is_cut_off() and not self.is_controller_away():
            raise NotReady(
                "this process has lost its session with the controller, which is there: another "
                "process may have its seat; retry in a moment"
            )

    def expect_epoch(self, epoch: int) -> None:
        """There is a map of that epoch: from now on no older one is used."""
        with self._lock:
            self._least_epoch = max(self._least_epoch, epoch)

    def is_controller_away(self) -> bool:
        """Whether the controller was asked a moment ago and could not say what map it has.

        Who is in a session with it knows that it is there.
        """
        if self._is_in_session is not None and self._is_in_session():
            return False

        with self._lock:
            return self._away_until is not None and time.monotonic() < self._away_until

    def refresh(self, timeout_s: float | None = None) -> Routing:
        """The controller's map now, whatever this client had before.

        Servers outside the new map are disconnected. A controller that does not answer is not
        waited for: the map in use stays, unless it is out of date. WrongRun if the controller is in
        another run than the one of the first map.
        """
        self._links.check_open()
        with self._lock:
            known = self._routing
            least_epoch = self._least_epoch

        if known is None:
            return self._use(self._controller.routing(timeout_s))

        asked_at = time.monotonic()
        limit_s = _ASK_MAP_S if timeout_s is None else min(timeout_s, _ASK_MAP_S)
        try:
            newest = self._controller.routing_now(limit_s, known.run_id)
        except retry.PASSING as error:
            is_word = isinstance(error, _WORDS_OF_A_CONTROLLER)
            is_there = is_word and not isinstance(error, RunUndecided)
            with self._lock:
                self._away_until = None if is_there else asked_at + _AWAY_S

            if known.epoch < least_epoch:
                raise

            return known

        return self._use(newest)

    def _use(self, newest: Routing) -> Routing:
        with self._lock:
            self._away_until = None
            if self._routing is not None:  # another thread may have seen an older run meanwhile
                check_run(self._routing.run_id, newest.run_id, "the controller")

            self._routing = newest

        self._links.keep_only(newest.addresses)
        return newest

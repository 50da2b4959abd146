"""Which of the parameter servers that offered themselves hold which shard of the model.

    offered --as many as needed are here--> [measured] --> chosen: has a shard
       |                                                     |          ^
       |                                                   lost --> back: the same shard
       |                                                                ^
       '--not needed now--> stands by --a shard is vacant for too long--'

As many ps are started as the map needs (`num_ps`), as are measured and dropped (`num_extra_ps`),
and as are not waited for (`num_redundant_ps`). With neither of the latter nothing is decided here:
a ps holds the shard of its index.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from megalith.controller.members.directives import MeasureOrder
from megalith.controller.members.roster import Registration
from megalith.controller.selection import ps_ranking
from megalith.controller.selection.offers import CandidateStatus, Measurement, Offer, Shape
from megalith.controller.selection.ps_list import PsListFile
from megalith.discovery import liveness
from megalith.errors import IndexTaken, InvalidSetting, NotInCluster
from megalith.wire.routing import ps_names

logger = logging.getLogger(__name__)

_ANSWER_S = 10.0  # for the answers to a measurement, beyond its own time
_CONNECTION_S = (
    30.0  # after which a connection to a machine that vanished is noticed: its keep-alive
)
_QUORUM = 0.9  # of the workers must be here before anything is measured


class Formation:
    """Every decision about who holds a shard.

    `_changed` guards everything here and is notified at each change. Sessions `offer` themselves
    and `wait`; one thread calls `advance`, which decides. `order_measurement` tells the workers and
    returns the sessions that were told; it is called without the lock.
    """

    def __init__(
        self,
        shape: Shape,
        ps_list: PsListFile,
        order_measurement: Callable[[MeasureOrder], Sequence[int]],
        *,
        probe: Callable[[Sequence[str]], liveness.Liveness] = liveness.probe,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shape = shape
        self._ps_list = ps_list
        self._order_measurement = order_measurement
        self._probe = probe
        self._clock = clock
        self._changed = threading.Condition()

        self._offers: dict[int, Offer] = {}  # those that are here, by index
        self._index_by_shard: dict[int, int] = {}
        self._known: dict[int, str] = {}  # address by index, also of those that left
        self._vacant_since: dict[int, float] = {}
        self._waiting_said = ""

        self._rows_per_s: dict[str, float] = {}
        self._measurement: Measurement | None = None
        self._orders = 0
        self._is_over: tuple[str] | None = None

        self._listed = ps_list.read() if self.is_selective else ()
        self._is_list_checked = False
        self._list_deadline = clock() + shape.takeover_s

    @property
    def is_selective(self) -> bool:
        """More are started than the map needs."""
        return self._shape.num_candidates > self._shape.num_ps

    # --- sessions ---

    def offer(self, registration: Registration) -> Offer:
        """A ps is here.

        IndexTaken if another one with its index is, or if its shard has been given away.
        """
        index = registration.index
        with self._changed:
            if not 0 <= index < self._shape.num_candidates:
                raise NotInCluster(
                    f"ps index {index} is outside this cluster of {self._shape.num_candidates} ps; "
                    "use a lower index, or start the controller with more ps"
                )

            if (
                registration.held_shard is not None
                and not 0 <= registration.held_shard < self._shape.num_ps
            ):
                raise NotInCluster(
                    f"ps-{index} says that it holds shard {registration.held_shard}; this cluster "
                    f"has shards 0 to {self._shape.num_ps - 1}, so it belongs to another one"
                )

            offer = Offer(
                index,
                registration.address,
                registration.incarnation,
                pid=registration.pid,
                host=registration.host,
            )

            if self._is_over is not None:
                offer.is_over = True
                offer.reason = self._is_over[0]
                return offer

            self._check_free(registration)
            offer.shard = self._shard_of(registration)
            self._offers[index], self._known[index] = offer, offer.address
            if offer.shard is not None:
                self._give(offer.shard, offer)

            self._changed.notify_all()
            return offer

    def wait(self, offer: Offer) -> int | None:
        """Until the ps has a shard, which is returned.

        None when it is not to get one: `reason` says why.
        """
        with self._changed:
            self._changed.wait_for(lambda: offer.shard is not None or offer.is_over)
            return None if offer.is_over else offer.shard

    def withdraw(self, offer: Offer) -> None:
        """Its session is over. Twice, or after a replacement, changes nothing."""
        with self._changed:
            offer.is_over = True

            if self._offers.get(offer.index) is offer:
                del self._offers[offer.index]

                if offer.shard is not None:
                    self._vacant_since[offer.shard] = self._clock()

            self._changed.notify_all()

    def dismiss(self, reason: str) -> None:
        """The job is over, or with an empty reason this controller is: nobody waits any longer."""
        with self._changed:
            self._is_over = (reason,)
            for offer in self._offers.values():
                if offer.shard is None:
                    offer.is_over = True
                    offer.reason = reason

            self._changed.notify_all()

    def answer(self, session: int, order: int, rows_per_s: Mapping[str, float]) -> None:
        """What a worker measured; an answer to an older order counts for nothing."""
        with self._changed:
            if self._measurement is not None and self._measurement.order.number == order:
                self._measurement.answers[session] = dict(rows_per_s)
                self._changed.notify_all()

    # --- the formation thread ---

    def wait_for_change(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait(timeout_s)

    def advance(self) -> None:
        """Decide what can be decided now."""
        if not self.is_selective:
            return

        self._check_list()

        with self._changed:
            if self._is_over is not None:
                return

            if self._index_by_shard:
                self._fill_vacancies()
                return

            order = self._choose()

        if order is not None:
            self._begin_measurement(order)

    def _begin_measurement(self, order: MeasureOrder) -> None:
        sessions = self._order_measurement(order)
        quorum = max(1, int(_QUORUM * self._shape.num_workers))

        with self._changed:
            if len(sessions) < quorum:
                self._measurement = None  # the next look tries again
                self._say_waiting(
                    f"{len(sessions)} of at least {quorum} workers are here to measure the ps"
                )
            elif self._measurement is not None:
                self._measurement.sessions = tuple(sessions)
                num_ps = len(order.addresses)
                logger.info("measuring %d ps with %d workers", num_ps, len(sessions))

    def _check_list(self) -> None:
        """A list whose servers are not all there belongs to an earlier run."""
        if self._listed and not self._is_list_checked:
            dead = self._probe(self._listed).dead
            if dead or len(self._listed) != self._shape.num_ps:
                why = ",".join(dead) or "another number of ps"
                logger.info("the list of an earlier run is not used: %s", why)
                self._listed = ()

        self._is_list_checked = True

    def _choose(self) -> MeasureOrder | None:
        """Give out the shards, or say what must be measured before that. Called under the lock."""
        here = {offer.address: offer for offer in self._offers.values()}
        if self._listed:
            if all(address in here for address in self._listed):
                self._appoint(self._listed, "as before")
            elif self._clock() > self._list_deadline:
                logger.info(
                    "the list of an earlier run is not used: not all of its servers came back"
                )
                self._listed = ()

            return None

        if len(here) < self._shape.num_required:
            self._measurement = None
            return None

        if self._shape.override:
            self._appoint_overridden(here)
            return None

        candidates = self._candidates_of(here)
        if not self._shape.num_extra_ps:
            self._appoint(candidates, "by index")
            return None

        return self._measure(candidates)

    def _candidates_of(self, here: Mapping[str, Offer]) -> tuple[str, ...]:
        """The servers to choose from: those that are being measured, or those of lowest index."""
        current = self._measurement
        if current is not None:
            measured = current.order.addresses
            if all(address in here for address in measured):
                return measured  # one of a lower index that comes later does not begin it anew

        first = sorted(self._offers)[: self._shape.num_required]
        return tuple(self._offers[index].address for index in first)

    def _measure(self, candidates: tuple[str, ...]) -> MeasureOrder | None:
        """Begin a measurement, or end the one under way when it has all answers or no more time."""
        current = self._measurement
        if current is None or current.order.addresses != candidates:
            self._orders += 1
            order = MeasureOrder(self._orders, candidates, self._shape.benchmark_s)
            deadline = self._clock() + self._shape.benchmark_s + _ANSWER_S
            self._measurement = Measurement(order, deadline)
            return order

        has_all_answers = len(current.answers) >= len(current.sessions)
        is_too_late = self._clock() >= current.deadline
        if not current.sessions or not (has_all_answers or is_too_late):
            return None

        if not current.answers:
            logger.warning("no worker has measured anything; trying again")
            self._measurement = None
            return None

        if not has_all_answers:
            logger.warning(
                "%d of %d workers have measured in time; the choice goes by what they say",
                len(current.answers),
                len(current.sessions),
            )

        self._rows_per_s = current.means()
        best = ps_ranking.best(self._rows_per_s, candidates, self._shape.num_ps)
        self._appoint(best, "by measured speed")
        return None

    def _say_waiting(self, why: str) -> None:
        """Why nobody is chosen yet; once, although the look is repeated twice a second."""
        if why != self._waiting_said:
            self._waiting_said = why
            logger.info("waiting: %s", why)

    def _appoint_overridden(self, here: Mapping[str, Offer]) -> None:
        address_by_index = {offer.index: address for address, offer in here.items()}
        try:
            chosen = ps_ranking.overridden(self._shape.override, address_by_index)
        except InvalidSetting as error:
            self._say_waiting(str(error))
            return

        missing = [address for address in chosen if address not in here]
        if missing:
            listed = ",".join(missing)
            self._say_waiting(f"--ps-override names {listed}, not here yet")
            return

        self._appoint(chosen, "by --ps-override")

    def _appoint(self, chosen: Sequence[str], how: str) -> None:
        by_address = {offer.address: offer for offer in self._offers.values()}
        for shard, address in enumerate(chosen):
            self._give(shard, by_address[address])

        logger.info(
            "chose %s %s: %s",
            ps_names(self._index_by_shard[s] for s in range(len(chosen))),
            how,
            ",".join(chosen),
        )

        self._write_list()
        self._changed.notify_all()

    def _fill_vacancies(self) -> None:
        """Give shards whose ps has been away for too long to those that stand by.

        The lowest index comes first.
        """
        standing_by = []
        for _, offer in sorted(self._offers.items()):
            if offer.shard is None:
                standing_by.append(offer)

        now = self._clock()

        for shard in range(self._shape.num_ps):
            holder_index = self._index_by_shard.get(shard, -1)
            holder = self._offers.get(holder_index)
            if holder is not None and holder.shard == shard:
                continue

            since = self._vacant_since.setdefault(shard, now)
            if standing_by and now - since >= self._shape.takeover_s:
                offer = standing_by.pop(0)
                logger.warning("ps-%d at %s takes over shard %d", offer.index, offer.address, shard)
                self._give(shard, offer)
                self._write_list()
                self._changed.notify_all()

    def _give(self, shard: int, offer: Offer) -> None:
        offer.shard = shard
        self._index_by_shard[shard] = offer.index
        self._vacant_since.pop(shard, None)

    def _check_free(self, registration: Registration) -> None:
        other = self._offers.get(registration.index)
        if other is not None and other.incarnation != registration.incarnation:
            named = (
                f"at {other.address} (process {other.pid} on {other.host})"
                if other.pid
                else f"at {other.address}"
            )

            error = IndexTaken(
                f"{registration.name} is held by a live process {named}; "
                "stop that one or use another index"
            )

            error.retry_for_s = _CONNECTION_S
            raise error

        if registration.held_shard is not None:
            holder = self._index_by_shard.get(registration.held_shard, registration.index)
            if holder != registration.index:
                raise IndexTaken(
                    f"shard {registration.held_shard} of {registration.name} was taken over "
                    f"by ps-{holder}"
                )

    def _shard_of(self, registration: Registration) -> int | None:
        """The shard that is this process's already.

        It comes back with it, or takes over from one that died.
        """
        if registration.held_shard is not None:
            return registration.held_shard

        for shard, index in self._index_by_shard.items():
            if index == registration.index:
                return shard

        return None

    def _write_list(self) -> None:
        held = []
        for shard in range(self._shape.num_ps):
            index = self._index_by_shard.get(shard, -1)
            held.append(self._known.get(index, ""))

        if not all(held):
            return

        try:
            self._ps_list.write(tuple(held))
        except OSError as error:
            logger.warning("the choice of ps is not kept for the next controller: %s", error)

    # --- for people ---

    @property
    def num_left(self) -> int:
        """Parameter servers that are still waited for."""
        with self._changed:
            if not self._index_by_shard:
                num_here = len(self._offers)
                return max(0, self._shape.num_required - num_here)

            num_held = 0
            for offer in self._offers.values():
                if offer.shard is not None:
                    num_held += 1

            return max(0, self._shape.num_ps - num_held)

    def candidates(self) -> list[CandidateStatus]:
        """Everyone who ever offered itself, by index; nobody unless there is a choice."""
        with self._changed:
            shard_by_index = {index: shard for shard, index in self._index_by_shard.items()}
            candidates = []
            for index, address in sorted(self._known.items()):
                candidate = CandidateStatus(
                    index=index,
                    address=address,
                    is_connected=index in self._offers,
                    shard=shard_by_index.get(index),
                    rows_per_s=self._rows_per_s.get(address, 0.0),
                )
                candidates.append(candidate)

            return candidates

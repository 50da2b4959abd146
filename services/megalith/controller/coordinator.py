"""The truth about the cluster: who is in it, the routing map, the barrier, the step, the phase.

FORMING --all ps ready--> INITIALIZING --chief created tables--> RUNNING --all workers done, saved--> FINISHED
   ^                          |  ^                                  |
   '-------- ps lost ---------'  '-- ps replaced: epoch + 1 --------'
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from megalith.controller.barrier import Barrier
from megalith.controller.directives import ClusterState, Phase, SaveOrder, Send, SessionEnd, ShutdownOrder, Welcome
from megalith.controller.roster import Place, PsLoad, Registration, Role, Roster, WorkerProgress
from megalith.wire import routing
from megalith.wire.errors import NotReady
from megalith.wire.routing import Routing

logger = logging.getLogger(__name__)


class Coordinator:
    """Every decision of the controller about membership, made under one lock.

    The lock guards everything here; the condition on it is notified at each change. `send` functions of sessions are
    called under it, so each session sees directives in the order of the decisions; they only enqueue.
    """

    def __init__(
        self,
        num_ps: int,
        num_workers: int,
        *,
        silence_s: float,
        lost_worker_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._silence_s, self._lost_worker_s = clock, silence_s, lost_worker_s
        self._changed = threading.Condition()
        self._roster = Roster(num_ps, num_workers, taken_silence_s=min(3.0, silence_s))
        self._barrier = Barrier()
        self._sessions: dict[int, tuple[Place, Send]] = {}
        self._session_ids = itertools.count(1)
        self._routing: Routing | None = None
        self._routed_incarnations: tuple[str, ...] = ()
        self._told: tuple[object, ...] = ()  # what the sessions were last told, in short
        self._epoch_floor = 0  # the newest epoch that any member has seen, also under an earlier controller
        self._initialized_epoch = 0
        self._global_step = 0
        self._outcome: tuple[bool, str] | None = None

    # --- sessions ---

    def join(self, registration: Registration, send: Send) -> Welcome:
        """Seat a process; from now on `send` gets every directive, the first being the current state."""
        with self._changed:
            place = self._roster.take(registration, self._clock())
            self._drop_sessions_of(place)
            self._epoch_floor = max(self._epoch_floor, registration.epoch)
            if self._routing is not None and self._epoch_floor > self._routing.epoch:
                self._routed_incarnations = ()  # a late member has seen newer maps than this controller: make one above
            if registration.role is Role.WORKER:
                self._initialized_epoch = max(self._initialized_epoch, registration.initialized_epoch)
                place.progress = replace(place.progress, is_blocked=False, is_finished=False)
            session = next(self._session_ids)
            self._settle()
            self._sessions[session] = (place, send)
            send(self._state())
            logger.info("joined role=%s index=%d address=%s", place.role, place.index, place.address)
            return Welcome(session, place.progress.position, self._global_step)

    def leave(self, session: int) -> None:
        """The stream of that session is over. Leaving twice, or after a replacement, changes nothing."""
        with self._changed:
            place, _ = self._sessions.pop(session, (None, None))
            if place is None:
                return
            place.is_connected = False
            logger.log(
                logging.INFO if place.progress.is_finished or self._outcome else logging.WARNING,
                "left role=%s index=%d address=%s",
                place.role,
                place.index,
                place.address,
            )
            self._settle()

    def drop_silent(self) -> None:
        """Let go of members whose stream is open but who have said nothing for too long."""
        with self._changed:
            now = self._clock()
            silent = {s: send for s, (place, send) in self._sessions.items() if place.is_silent(now, self._silence_s)}
        for session, send in silent.items():
            self.leave(session)
            send(SessionEnd())  # should it wake up, it learns that its place is gone
        with self._changed:
            self._settle()  # a worker may have been lost for long enough to count as finished

    def report_worker(self, session: int, progress: WorkerProgress) -> None:
        with self._changed:
            place = self._heard(session)
            if place is None:
                return
            place.progress = progress
            self._global_step = max(self._global_step, progress.global_step)
            self._initialized_epoch = max(self._initialized_epoch, progress.initialized_epoch)
            self._settle()

    def report_ps(self, session: int, load: PsLoad) -> None:
        with self._changed:
            place = self._heard(session)
            if place is None:
                return
            place.load = load
            self._settle()

    def is_alive(self, session: int) -> bool:
        """Whether that session still holds its place."""
        with self._changed:
            return session in self._sessions

    def _heard(self, session: int) -> Place | None:
        place, _ = self._sessions.get(session, (None, None))
        if place is not None:
            place.last_seen = self._clock()
        return place

    def _drop_sessions_of(self, place: Place) -> None:
        for session in [s for s, (held, _) in self._sessions.items() if held is place]:
            _, send = self._sessions.pop(session)
            send(ShutdownOrder(f"{place.role} {place.index} was taken over by {place.address}"))
            send(SessionEnd())

    # --- operators ---

    def place_barrier(self, action: str = "") -> None:
        with self._changed:
            self._barrier.place(action)
            logger.info("barrier placed action=%r step=%d", action, self._global_step)
            self._settle()

    def remove_barrier(self) -> None:
        with self._changed:
            self._barrier.remove()
            logger.info("barrier removed step=%d", self._global_step)
            self._settle()

    def block_status(self) -> tuple[list[int], list[int]]:
        """(blocked, unblocked) worker indices; see GetBlockStatusResponse."""
        with self._changed:
            blocked = [place.index for place in self._roster.workers if self._is_blocked(place)]
            return blocked, [place.index for place in self._roster.workers if place.index not in blocked]

    def _is_blocked(self, place: Place) -> bool:
        # Slot 0 of the reference is the barrier itself; with a chief connected the chief's own word is better.
        if place.index == 0 and not place.is_connected:
            return self._barrier.is_placed
        return place.is_connected and place.progress.is_blocked

    @property
    def global_step(self) -> int:
        with self._changed:
            return self._global_step

    def raise_global_step(self, step: int) -> None:
        """A restored checkpoint stands at this step."""
        with self._changed:
            self._global_step = max(self._global_step, step)

    def current_routing(self) -> Routing:
        with self._changed:
            if self._routing is None:
                missing = [place.index for place in self._roster.ps if not self._is_ready(place)]
                raise NotReady(f"the cluster is forming: waiting for ps {missing}")
            return self._routing

    def state(self) -> ClusterState:
        with self._changed:
            return self._state()

    def places(self) -> tuple[list[Place], float]:
        """Copies of all places, and the clock they are to be read against."""
        with self._changed:
            return [replace(place) for place in (*self._roster.ps, *self._roster.workers)], self._clock()

    # --- saves and the end ---

    def order_save(self, order: SaveOrder) -> list[int]:
        """Tell every ps to write its shard; returns their sessions. NotReady unless all of them are ready."""
        with self._changed:
            missing = [place.index for place in self._roster.ps if not self._is_ready(place)]
            if missing or self._routing is None:
                raise NotReady(f"cannot save: waiting for ps {missing}")
            by_place = {id(place): (session, send) for session, (place, send) in self._sessions.items()}
            targets = [by_place[id(place)] for place in self._roster.ps]
            for _, send in targets:
                send(order)
            return [session for session, _ in targets]

    def index_of(self, session: int) -> int | None:
        with self._changed:
            place, _ = self._sessions.get(session, (None, None))
            return place.index if place else None

    def wait_until_workers_finish(self, stop: Callable[[], bool]) -> bool:
        """Block until all workers are done (True), or the job was ended or `stop()` holds (False)."""
        with self._changed:
            self._changed.wait_for(lambda: stop() or self._outcome is not None or self._are_workers_done())
            return self._are_workers_done() and self._outcome is None and not stop()

    def wake(self) -> None:
        """Let waiting threads look at their stop condition again."""
        with self._changed:
            self._changed.notify_all()

    def end(self, succeeded: bool, reason: str) -> None:
        """Decide the outcome. The first call decides; later ones change nothing."""
        with self._changed:
            if self._outcome is None:
                self._outcome = (succeeded, reason)
                logger.info("job ended succeeded=%s reason=%s step=%d", succeeded, reason, self._global_step)
                self._settle()

    @property
    def outcome(self) -> tuple[bool, str] | None:
        with self._changed:
            return self._outcome

    def wait_until_ended(self, stop: Callable[[], bool]) -> bool:
        """Block until the outcome is decided (True) or `stop()` holds (False)."""
        with self._changed:
            self._changed.wait_for(lambda: stop() or self._outcome is not None)
            return self._outcome is not None

    def dismiss(self, reason: str, timeout_s: float) -> None:
        """Tell every member to exit and wait until all have left, or the time is over."""
        with self._changed:
            for _, send in self._sessions.values():
                send(ShutdownOrder(reason))
            self._changed.wait_for(lambda: not self._sessions, timeout_s)

    def end_sessions(self) -> None:
        """End every stream; members will look for another controller."""
        with self._changed:
            for _, send in self._sessions.values():
                send(SessionEnd())

    # --- the state machine ---

    def _settle(self) -> None:
        """Draw the consequences of a change and tell everyone who must know. Called under the lock."""
        self._update_routing()
        state = self._state()
        told = (state.phase, state.routing and state.routing.epoch, self._barrier.is_placed, state.finished_workers)
        if told != self._told:
            self._told = told
            for _, send in self._sessions.values():
                send(state)
        self._changed.notify_all()

    def _update_routing(self) -> None:
        if not all(self._is_ready(place) for place in self._roster.ps):
            return
        # A ps that is back at its old address is another process without the old one's rows: that is a new map too.
        incarnations = tuple(place.incarnation for place in self._roster.ps)
        if self._routed_incarnations == incarnations:
            return
        self._routed_incarnations = incarnations
        addresses = tuple(place.address for place in self._roster.ps)
        current = self._routing.epoch if self._routing else 0
        epoch = max(current, self._epoch_floor) + 1
        self._routing = Routing(epoch, addresses, routing.even_owners(len(addresses)))
        logger.info("routing epoch=%d ps=%s", epoch, ",".join(addresses))

    def _is_ready(self, place: Place) -> bool:
        return place.is_connected and place.load.is_ready

    def _phase(self) -> Phase:
        if self._outcome is not None:
            return Phase.FINISHED
        if self._routing is None or not all(self._is_ready(place) for place in self._roster.ps):
            return Phase.FORMING
        if self._roster.workers and self._initialized_epoch < self._routing.epoch:
            return Phase.INITIALIZING
        return Phase.RUNNING

    def _is_finished(self, place: Place) -> bool:
        if place.progress.is_finished:
            return True
        was_lost = not place.is_connected and place.address != ""
        return was_lost and self._clock() - place.last_seen > self._lost_worker_s

    def _are_workers_done(self) -> bool:
        return bool(self._roster.workers) and all(self._is_finished(place) for place in self._roster.workers)

    def _state(self) -> ClusterState:
        return ClusterState(
            phase=self._phase(),
            routing=self._routing,
            is_barrier_placed=self._barrier.is_placed,
            barrier_action=self._barrier.action,
            finished_workers=tuple(p.index for p in self._roster.workers if self._is_finished(p)),
        )

"""What belongs to one run of a job and outlives its controller: map, barrier, steps; and whether a run goes on."""

import hashlib
import logging
import secrets
from collections.abc import Collection
from dataclasses import replace

from megalith.controller.barrier import Barrier
from megalith.controller.journal import Journal, JournaledMember
from megalith.controller.roster import (
    Place,
    PsLoad,
    Registration,
    Role,
    Roster,
    Standing,
    WorkerProgress,
)
from megalith.wire import routing
from megalith.wire.errors import InvalidRequest, NotInCluster
from megalith.wire.routing import Routing

logger = logging.getLogger(__name__)

# How far a member may be ahead of what this controller knows, which may have lost its journal. Generous for any real
# run, and small enough that numbers made up by somebody never come near the end of their range.
_MAX_EPOCH_LEAD = 2**20
_MAX_STEP_LEAD = 2**40


class Run:
    """The present run. Not thread-safe: the coordinator's lock guards it.

    After `recover`, the members of the journal are suspects that may come back: the first one that does proves that
    the run goes on, with its map, barrier, step and positions. If none does, this is a new run. Until that is known the
    run `is_awaited`, and nothing else may be made of it.

    `id` is drawn when a run begins and stays while it goes on. Clients and members name it: rows and steps of one run
    are never mixed with those of another.
    """

    def __init__(
        self, job: str, roster: Roster, checkpoint_step: int, ended_runs: Collection[str] = ()
    ) -> None:
        self._job, self._roster, self._checkpoint_step = job, roster, checkpoint_step
        self._ended_runs = frozenset(
            ended_runs
        )  # of this directory; their members belong to no other
        self.id = secrets.token_hex(8)
        self._is_id_open = (
            True  # until there is a map: without a journal, a member may know the run better
        )
        self.barrier = Barrier()
        self.routing: Routing | None = None
        self.first_step = checkpoint_step  # the global step at which it began: positions of workers count from there
        self.global_step = checkpoint_step
        self.initialized_epoch = 0
        self._routed_incarnations: tuple[str, ...] = ()
        self._epoch_floor = (
            0  # the newest epoch that any member has seen, also under an earlier controller
        )
        self.has_recovered = False  # this is the run of the journal
        self._awaited: frozenset[str] = (
            frozenset()
        )  # incarnations, one of which proves that the journal's run goes on

    @property
    def is_awaited(self) -> bool:
        return bool(self._awaited)

    @property
    def epoch(self) -> int:
        """Of the map; 0 = there is none."""
        return self.routing.epoch if self.routing else 0

    def check(self, registration: Registration) -> None:
        """Refuse a member before anything is taken from it.

        NotInCluster for a process that has been in another run than this one, InvalidRequest for one that claims what
        this run cannot have reached.
        """
        if registration.run_id in self._ended_runs:
            raise NotInCluster(
                f"{registration.role} {registration.index} (process {registration.pid} on {registration.host}) has "
                f"been in run {registration.run_id}, which has ended; start the process again to join the present one"
            )
        if not self._is_id_open and registration.run_id not in ("", self.id):
            raise NotInCluster(
                f"{registration.role} {registration.index} has been in run {registration.run_id}, this is run "
                f"{self.id}, which began from the newest checkpoint without it; start the process again"
            )
        newest = max(self.epoch, self._epoch_floor)
        if registration.epoch > newest + _MAX_EPOCH_LEAD:
            raise InvalidRequest(
                f"{registration.role} {registration.index} has seen epoch {registration.epoch}, "
                f"this run is at {newest}; it belongs to another job"
            )
        if registration.initialized_epoch > max(newest, registration.epoch):
            raise InvalidRequest(
                f"{registration.role} {registration.index} initialized epoch {registration.initialized_epoch}, "
                f"which nobody has seen; the newest is {max(newest, registration.epoch)}"
            )
        self.check_progress(registration.global_step, 0)

    def check_progress(self, global_step: int, initialized_epoch: int) -> None:
        """InvalidRequest if a worker reports a step or an epoch that this run cannot have reached."""
        if global_step > self.global_step + _MAX_STEP_LEAD:
            raise InvalidRequest(
                f"global_step={global_step} is far beyond step {self.global_step} of this run"
            )
        newest = max(self.epoch, self._epoch_floor)
        if initialized_epoch > newest:
            raise InvalidRequest(
                f"initialized_epoch={initialized_epoch}: the newest epoch of this run is {newest}"
            )

    def hear(self, registration: Registration, is_first_worker: bool) -> None:
        """Take what a member that joins knows of the run, perhaps from an earlier controller; `check` it first."""
        if self._is_id_open and registration.run_id:
            self.id = registration.run_id  # of a run whose journal is lost
            self._is_id_open = False
        self._epoch_floor = max(self._epoch_floor, registration.epoch)
        if self.routing is not None and self._epoch_floor > self.routing.epoch:
            self._routed_incarnations = ()  # a late member has seen newer maps than this controller: make one above
        if registration.role is Role.WORKER:
            is_chief = registration.index == 0
            self.advance(
                registration.global_step, registration.initialized_epoch if is_chief else 0
            )
            if is_first_worker and registration.first_step is not None:
                self._begin_at(registration.first_step)

    def _begin_at(self, first_step: int) -> None:
        """A worker of a run whose journal is lost knows at which step the run began."""
        if first_step > self.global_step:
            logger.warning(
                "a run at step %d cannot have begun at step %d; ignored",
                self.global_step,
                first_step,
            )
            return
        self.first_step = first_step

    def advance(self, global_step: int, initialized_epoch: int) -> None:
        """A worker has seen that step, and the chief has initialized that epoch."""
        self.global_step = max(self.global_step, global_step)
        self.initialized_epoch = max(self.initialized_epoch, initialized_epoch)

    @property
    def is_new(self) -> bool:
        """No map has been made, and no member has seen one."""
        return self.routing is None and self._epoch_floor == 0

    @property
    def is_routed(self) -> bool:
        """The present map is that of the parameter servers that are here."""
        # A ps that is back at its old address is another process without the old one's rows: it is not in the map.
        return self._routed_incarnations == tuple(place.incarnation for place in self._roster.ps)

    def route(self) -> None:
        """Make a new map, one epoch higher."""
        self._routed_incarnations = tuple(place.incarnation for place in self._roster.ps)
        addresses = tuple(place.address for place in self._roster.ps)
        epoch = max(self.epoch, self._epoch_floor) + 1
        self._is_id_open = False
        self.routing = self._map(epoch, addresses, self._routed_incarnations)
        logger.info("routing epoch=%d ps=%s run=%s", epoch, ",".join(addresses), self.id)

    def _map(
        self, epoch: int, addresses: tuple[str, ...], incarnations: tuple[str, ...]
    ) -> Routing:
        owners = routing.even_owners(len(addresses))
        return Routing(epoch, addresses, owners, self.id, tuple(map(_instance, incarnations)))

    # --- what the next controller must know ---

    def journal(self) -> Journal:
        """What the next controller must know if this one dies now."""
        return Journal(
            job=self._job,
            run_id=self.id,
            epoch=max(self._epoch_floor, self.epoch),
            initialized_epoch=self.initialized_epoch,
            global_step=self.global_step,
            first_step=self.first_step,
            barrier=self.barrier.state,
            routed=self._routed_incarnations,
            ps=tuple(
                JournaledMember(
                    place.address,
                    place.incarnation,
                    rows=place.load.rows,
                    pushes=place.load.pushes,
                    pushes_saved=place.pushes_saved,
                    tables=place.load.tables,
                    variables=place.load.variables,
                )
                for place in self._roster.ps
            ),
            workers=tuple(
                JournaledMember(
                    place.address,
                    place.incarnation,
                    place.progress.position,
                    place.progress.total_batches,
                    place.progress.pushes_unknown,
                )
                for place in self._roster.workers
            ),
        )

    def recover(self, journal: Journal) -> None:
        """Take up what an earlier controller knew. Its members are suspects from now on."""
        self._epoch_floor = journal.epoch
        self._is_id_open = False
        if (len(journal.ps), len(journal.workers)) != (
            len(self._roster.ps),
            len(self._roster.workers),
        ):
            logger.warning(
                "the last controller ran %d ps and %d workers; this is a new run",
                len(journal.ps),
                len(journal.workers),
            )
            return
        for place, member in zip(self._roster.places, (*journal.ps, *journal.workers), strict=True):
            place.address, place.incarnation = member.address, member.incarnation
            self._roster.hear(place)
            place.has_lease = (
                place.role is Role.PS
            )  # it may serve clients that know of no controller
            is_ready = member.incarnation in journal.routed
            place.load = PsLoad(
                is_ready=is_ready,
                rows=member.rows,
                pushes=member.pushes,
                tables=member.tables,
                variables=member.variables,
            )
            place.pushes_saved = member.pushes_saved
            place.progress = WorkerProgress(
                position=member.position,
                total_batches=member.total_batches,
                pushes_unknown=member.pushes_unknown,
            )
        self._awaited = journal.incarnations
        self.id = journal.run_id or self.id
        self.barrier.restore(journal.barrier)
        self.first_step = journal.first_step
        self.global_step = max(self.global_step, journal.global_step)
        self.initialized_epoch = journal.initialized_epoch
        if self._awaited and journal.routed == tuple(member.incarnation for member in journal.ps):
            addresses = tuple(member.address for member in journal.ps)
            self.routing = self._map(journal.epoch, addresses, journal.routed)
            self._routed_incarnations = journal.routed

    def decide(self) -> None:
        """Whether the run of the journal goes on: it does once one of its members is back."""
        if not self._awaited:
            return
        known = self._awaited_places()
        if any(place.is_connected for place in known):
            self._awaited = frozenset()
            self.has_recovered = True
            barrier = self.barrier.state
            logger.info(
                "recovered epoch=%d step=%d barrier=%s",
                self.epoch,
                self.global_step,
                f"{barrier.id} placed by {barrier.reason}" if barrier.is_placed else "none",
            )
        elif not any(self._roster.standing(place) is Standing.SUSPECT for place in known):
            logger.info("no process of the last run is left; this is a new run")
            self._begin_anew()

    def awaited_addresses(self) -> tuple[str, ...]:
        """Of the members one of which would prove that the journal's run goes on."""
        return tuple(place.address for place in self._awaited_places())

    def go_on_waiting_for(self, addresses: Collection[str]) -> None:
        """Somebody listens there: these members are not given up yet."""
        for place in self._awaited_places():
            if place.address in addresses:
                self._roster.hear(place)

    def _awaited_places(self) -> list[Place]:
        return [place for place in self._roster.places if place.incarnation in self._awaited]

    def _begin_anew(self) -> None:
        self.id = secrets.token_hex(8)
        self._awaited, self.routing, self._routed_incarnations = frozenset(), None, ()
        self.initialized_epoch = 0
        self.first_step = self.global_step = self._checkpoint_step
        self.barrier.remove()
        for place in self._roster.ps:  # servers of another run answer nobody of this one
            place.has_lease = False
            place.leased_until = 0.0
        for place in self._roster.workers:
            place.progress = replace(place.progress, position=0, total_batches=0)


def _instance(incarnation: str) -> str:
    """What clients know a process by. Not its incarnation, with which anybody could take its place."""
    return hashlib.sha256(incarnation.encode()).hexdigest()[:16]

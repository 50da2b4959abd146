"""What belongs to one run of a job and outlives its controller: map, barrier, steps.

And whether a run goes on.
"""

import hashlib
import logging
import secrets
from collections.abc import Collection
from dataclasses import asdict, replace

from megalith.controller.members.barrier import Barrier, BarrierState, Holder, HolderKind
from megalith.controller.members.directives import Phase
from megalith.controller.members.journal import (
    Journal,
    cursor_of_text,
    journal_ps,
    journal_worker,
    restore_seat,
    text_of_cursor,
)
from megalith.controller.members.piece_book import PieceBook, book_of
from megalith.controller.members.roster import Registration, Role, Roster, Seat, Standing
from megalith.errors import InvalidRequest, NotInCluster, NotReady, RunUndecided
from megalith.wire import routing
from megalith.wire.reports import LeftOut
from megalith.wire.routing import Routing, check_run, ps_names

logger = logging.getLogger(__name__)

# How far a member may be ahead of what this controller knows, which may have lost its journal.
# Generous for any real run, and small enough that numbers made up by somebody never come near the
# end of their range. It keeps garbage out, not a member that lies: who has a seat is trusted.
_MAX_EPOCH_LEAD = 2**20
_MAX_STEP_LEAD = 2**40


class Run:
    """The present run. Not thread-safe: the coordinator's lock guards it.

    After `recover`, the members of the journal are suspects that may come back: the first one that
    does proves that the run goes on, with its map, barrier, step and positions. If none does, this
    is a new run. Until that is known the run `is_awaited`, and nothing else may be made of it.

    `id` is drawn when a run begins and stays while it goes on. Clients and members name it: rows
    and steps of one run are never mixed with those of another.
    """

    def __init__(
        self,
        job: str,
        roster: Roster,
        checkpoint_step: int,
        ended_runs: Collection[str] = (),
        first_cursors: tuple[bytes, ...] = (),
    ) -> None:
        self._job = job
        self._roster = roster
        self._checkpoint_step = checkpoint_step
        self._checkpoint_cursors = first_cursors
        self.first_cursors = first_cursors  # where the input of this run began
        self.pieces = book_of(first_cursors)
        roster.is_input_done = lambda: self.pieces.is_complete
        # Of this directory; their members belong to no other run
        self._ended_runs = frozenset(ended_runs)
        self.not_continued: tuple[str, ...] = ()  # of earlier controllers: they end with this one
        self._inherited_id = 0  # of the newest hold that an earlier controller has placed
        self.lifted_holds: tuple[Holder, ...] = ()  # of a run that did not go on
        self._was_mapped = False  # a member of this run, perhaps an earlier controller, had a map
        self.id = secrets.token_hex(8)
        # Until there is a map: without a journal, a member may know the run better
        self._is_id_open = True
        self._barrier = Barrier()
        self.routing: Routing | None = None
        # The global step at which it began: positions of workers count from there
        self.first_step = checkpoint_step
        self.global_step = checkpoint_step
        self.initialized_epoch = 0
        self._routed_incarnations: tuple[str, ...] = ()
        # By ps index: who was in the newest map, also when that map is out of date by now
        self._last_routed: tuple[str, ...] = ()
        # The newest epoch that any member has seen, also under an earlier controller
        self._epoch_floor = 0
        self.has_recovered = False  # this is the run of the journal
        # Incarnations, one of which proves that the journal's run goes on
        self._awaited: frozenset[str] = frozenset()

    @property
    def is_awaited(self) -> bool:
        return bool(self._awaited)

    @property
    def epoch(self) -> int:
        """Of the map; 0 = there is none."""
        return self.routing.epoch if self.routing else 0

    @property
    def phase(self) -> Phase:
        """As far as the run itself decides it: a job that has an outcome is FINISHED."""
        if self.is_awaited or self.routing is None or self._roster.missing_ps():
            return Phase.FORMING
        if self._roster.workers and self.initialized_epoch < self.epoch:
            return Phase.INITIALIZING

        return Phase.RUNNING

    @property
    def has_trained(self) -> bool:
        """Whether there may be anything to save: a map, and tables that the chief has created.

        The map may have been an earlier controller's: while a ps is being replaced there is none.
        """
        is_initialized = not self._roster.workers or self.initialized_epoch > 0
        return not self.is_new and is_initialized

    def routing_for(self, run_id: str) -> Routing:
        """The map, for a client that belongs to `run_id`; empty = it belongs to none yet.

        RunUndecided until it is known whether the last run goes on, NotReady before the first map.
        """
        if self.is_awaited:
            raise RunUndecided(
                "whether the run of the last controller goes on is not known yet; retry in a moment"
            )

        check_run(run_id or self.id, self.id, "the controller")
        if self.routing is None:
            missing = ps_names(self._roster.missing_ps())
            raise NotReady(f"the cluster is forming: waiting for {missing or 'the first map'}")

        return self.routing

    # --- holds on training ---

    @property
    def barrier(self) -> BarrierState:
        """Who holds training now."""
        return self._barrier.state

    def is_held_by(self, kind: HolderKind) -> bool:
        return self._barrier.is_held_by(kind)

    def hold(self, action: str, reason: str, kind: HolderKind) -> BarrierState:
        """Hold training until this holder lets go. BarrierAlreadyPlaced if it holds already."""
        return self._barrier.place(action, reason, kind)

    def let_go(self, hold_id: int) -> None:
        """End that one hold; the holds of others stay."""
        before = self.barrier
        self._barrier.let_go(hold_id)
        self._log_let_go(before)

    def lift(self, *kinds: HolderKind) -> None:
        """End the holds of these kinds; those of others stay."""
        before = self.barrier
        self._barrier.remove(*kinds)
        self._log_let_go(before)

    def _log_let_go(self, before: BarrierState) -> None:
        if self.barrier == before:
            return

        left = ", ".join(holder.kind for holder in self.barrier.holders) or "nobody"
        logger.info(
            "barrier let go id=%d step=%d still held by=%s", before.id, self.global_step, left
        )

    # --- what members know ---

    def check(self, registration: Registration) -> None:
        """Refuse a member before anything is taken from it.

        NotInCluster for a process that has been in another run than this one and for a ps that was
        replaced, InvalidRequest for one that claims what this run cannot have reached.
        """
        if not self._is_id_open and registration.run_id not in ("", self.id):
            raise NotInCluster(
                f"{registration.name} has been in run {registration.run_id}, "
                f"this is run {self.id}, which began from the newest checkpoint without it; "
                "start the process again"
            )

        if registration.run_id in self._ended_runs:
            raise NotInCluster(
                f"{registration.name} (process {registration.pid} on "
                f"{registration.host}) has been in run {registration.run_id}, which has ended; "
                "start the process again to join the present one"
            )

        self._check_rows(registration)
        newest = max(self.epoch, self._epoch_floor)
        if registration.epoch > newest + _MAX_EPOCH_LEAD:
            raise InvalidRequest(
                f"{registration.name} has seen epoch {registration.epoch}, "
                f"this run is at {newest}; it belongs to another job"
            )

        newest_seen = max(newest, registration.epoch)
        if registration.initialized_epoch > newest_seen:
            raise InvalidRequest(
                f"{registration.name} initialized epoch "
                f"{registration.initialized_epoch}, which nobody has seen; "
                f"the newest is {newest_seen}"
            )

        self.check_progress(registration.global_step, 0)

    def _check_rows(self, registration: Registration) -> None:
        """NotInCluster for a ps whose rows are out of date, because another process served since.

        That process may be gone, but what it trained is in a checkpoint or is said to be lost. A ps
        that has seen a newer epoch than this controller is believed: the journal was behind.
        """
        index = registration.held_shard
        if index is None or not 0 <= index < len(self._roster.ps) or self.is_new:
            return

        has_newer_map = registration.epoch > max(self.epoch, self._epoch_floor)
        holder = self._roster.ps[index].incarnation
        last_to_serve = self._last_routed[index] if self._last_routed else holder
        # A holder that no map has named yet came after the last one that served, and is newer.
        if registration.incarnation in (holder, last_to_serve) or has_newer_map:
            return

        if not last_to_serve:
            return

        raise NotInCluster(
            f"ps-{index} (process {registration.pid} on {registration.host}) was replaced while it "
            "was away, so its rows are out of date; start the process again"
        )

    def check_progress(self, global_step: int, initialized_epoch: int) -> None:
        """InvalidRequest for a step or an epoch that this run cannot have reached."""
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
        """Take what a member that joins knows of the run, perhaps from an earlier controller.

        `check` it first.
        """
        if self._is_id_open and registration.run_id:
            self.id = registration.run_id  # of a run whose journal is lost
            self._is_id_open = False

        self._epoch_floor = max(self._epoch_floor, registration.epoch)
        # A member that names no run has seen maps, perhaps of another run, and served by none.
        self._was_mapped = self._was_mapped or bool(registration.epoch and registration.run_id)
        if self.routing is not None and self._epoch_floor > self.routing.epoch:
            # A late member has seen newer maps than this controller: make one above
            self._routed_incarnations = ()

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
        return self.routing is None and not self._was_mapped

    @property
    def is_routed(self) -> bool:
        """The present map is that of the parameter servers that are here."""
        # A ps that is back at its old address is another process without the old one's rows: it is
        # not in the map.
        present = tuple(seat.incarnation for seat in self._roster.ps)
        return self._routed_incarnations == present

    def route(self) -> None:
        """Make a new map, one epoch higher."""
        seats = self._roster.ps
        incarnations = tuple(seat.incarnation for seat in seats)
        addresses = tuple(seat.address for seat in seats)

        newest_epoch = max(self.epoch, self._epoch_floor)
        epoch = newest_epoch + 1

        self._is_id_open = False
        self._routed_incarnations = incarnations
        self._last_routed = incarnations
        self.routing = self._map(epoch, addresses, incarnations)

        listed = ",".join(addresses)
        logger.info("routing epoch=%d ps=%s run=%s", epoch, listed, self.id)

    def _map(
        self, epoch: int, addresses: tuple[str, ...], incarnations: tuple[str, ...]
    ) -> Routing:
        owners = routing.even_owners(len(addresses))
        instances = tuple(_instance(incarnation) for incarnation in incarnations)

        return Routing(epoch, addresses, owners, self.id, instances)

    def book_to_take_from(self) -> PieceBook:
        """InvalidRequest if this run began where workers with shares of their own had been."""
        if any(self.first_cursors) and not self.pieces.is_known:
            raise InvalidRequest(
                "the checkpoint was saved with --sharding static, and its cursors say nothing of "
                "pieces: go on with --sharding static, or read the input from its start by "
                "--input-cursors false"
            )

        return self.pieces

    def cursors(self) -> tuple[bytes, ...]:
        """By worker: where its input is, or where this run began if it has not begun.

        Of an input that is handed out: its book alone. If this run began with the cursors of
        another number of workers, they stay those of all until each worker has begun: only the
        input can divide them anew, so nobody else can say where the share of one begins. A run
        without workers reads nothing, and leaves them as they are.
        """
        if not self._roster.workers:
            return self.first_cursors
        if self.pieces.is_known:
            return (self.pieces.encoded(with_holders=False),)
        if self._are_first_cursors_undivided():
            return self.first_cursors

        reported = [seat.progress.cursor for seat in self._roster.workers]
        if len(self.first_cursors) != len(reported):
            return tuple(reported)

        return tuple(
            cursor or first for cursor, first in zip(reported, self.first_cursors, strict=True)
        )

    def cursors_step(self) -> int:
        """The step that belongs to these cursors: what was trained since then is not in them."""
        return self.first_step if self._are_first_cursors_undivided() else self.global_step

    def _are_first_cursors_undivided(self) -> bool:
        """Whether this run has another number of workers, and one that has not begun."""
        if self.pieces.is_known or not any(self.first_cursors):
            return False

        workers = [seat.progress for seat in self._roster.workers]
        # An empty cursor of one that has begun is the start of its input
        have_begun = [bool(each.cursor) or each.has_begun for each in workers]
        has_other_number = len(workers) != len(self.first_cursors)

        return has_other_number and not all(have_begun)

    # --- what the next controller must know ---

    def journal(self) -> Journal:
        """What the next controller must know if this one dies now."""
        has_predecessor = self._roster.has_predecessor
        return Journal(
            job=self._job,
            run_id=self.id,
            epoch=max(self._epoch_floor, self.epoch),
            initialized_epoch=self.initialized_epoch,
            global_step=self.global_step,
            first_step=self.first_step,
            barrier=self._barrier.state,
            routed=self._routed_incarnations,
            ps=tuple(journal_ps(seat, has_predecessor(seat)) for seat in self._roster.ps),
            workers=tuple(
                journal_worker(seat, has_predecessor(seat)) for seat in self._roster.workers
            ),
            first_cursors=tuple(map(text_of_cursor, self.first_cursors)),
            pieces=self.pieces.encoded(with_holders=True).decode() if self.pieces.is_known else "",
            was_mapped=not self.is_new,
            ended_runs=self.not_continued,
        )

    def recover(self, journal: Journal) -> None:
        """Take up what an earlier controller knew. Its members are suspects from now on."""
        self._epoch_floor = journal.epoch
        self._is_id_open = False

        num_ps = len(journal.ps)
        num_workers = len(journal.workers)
        has_ps = num_ps == len(self._roster.ps)
        has_workers = num_workers == len(self._roster.workers)

        if not (has_ps and has_workers):
            logger.warning(
                "the last controller ran %d ps and %d workers; this is a new run",
                num_ps,
                num_workers,
            )
            self._leave_behind(journal.run_id, journal.barrier.lasting)
            return

        self._was_mapped = journal.was_mapped
        members = (*journal.ps, *journal.workers)

        for seat, member in zip(self._roster.seats, members, strict=True):
            is_routed = member.incarnation in journal.routed
            restore_seat(seat, member, is_ready=is_routed)
            self._roster.hear(seat)

            is_map_anothers = seat.role is Role.PS and journal.routed and not is_routed
            if is_map_anothers or member.has_predecessor:
                self._roster.wait_for_lease(seat)  # of whoever may still serve or train

        if len(journal.routed) == len(self._roster.ps):
            self._last_routed = journal.routed

        self._awaited = journal.incarnations
        self.id = journal.run_id or self.id
        self._barrier.restore(journal.barrier)
        self._inherited_id = journal.barrier.id

        self.first_step = journal.first_step
        self.first_cursors = tuple(cursor_of_text(text) for text in journal.first_cursors)
        self.pieces = book_of(self.first_cursors)

        if journal.pieces:
            self.pieces = PieceBook.parse(journal.pieces.encode())
            self.pieces.go_on()

        self.global_step = max(self.global_step, journal.global_step)
        self.initialized_epoch = journal.initialized_epoch

        incarnations = tuple(member.incarnation for member in journal.ps)
        if self._awaited and journal.routed == incarnations:
            addresses = tuple(member.address for member in journal.ps)
            self.routing = self._map(journal.epoch, addresses, journal.routed)
            self._routed_incarnations = journal.routed

    def decide(self) -> None:
        """Whether the run of the journal goes on: it does once one of its members is back."""
        if not self._awaited:
            return

        known = self._awaited_seats()
        if any(seat.is_connected for seat in known):
            self._awaited = frozenset()
            self.has_recovered = True

            barrier = self.barrier
            held = "none"
            if barrier.is_placed:
                held = f"{barrier.id} placed by {barrier.reason}"

            logger.info("recovered epoch=%d step=%d barrier=%s", self.epoch, self.global_step, held)
        elif not any(self._roster.standing(seat) is Standing.SUSPECT for seat in known):
            logger.info("no process of the last run is left; this is a new run")
            self._begin_anew()

    def awaited_addresses(self) -> tuple[str, ...]:
        """Of the members one of which would prove that the journal's run goes on."""
        return tuple(seat.address for seat in self._awaited_seats())

    def go_on_waiting_for(self, addresses: Collection[str]) -> None:
        """Somebody listens there: these members are not given up yet."""
        for seat in self._awaited_seats():
            if seat.address in addresses:
                self._roster.hear(seat)

    def _awaited_seats(self) -> list[Seat]:
        return [seat for seat in self._roster.seats if seat.incarnation in self._awaited]

    def _leave_behind(self, run_id: str, holders: tuple[Holder, ...]) -> None:
        """The run of the journal does not go on: its members are refused and its holds end."""
        if run_id:
            self.not_continued = (run_id,)

        self.lifted_holds = holders
        for holder in holders:
            self._barrier.let_go(holder.id)

    def _begin_anew(self) -> None:
        inherited = []
        for holder in self.barrier.holders:
            if holder.id <= self._inherited_id:
                inherited.append(holder)

        self._leave_behind(self.id, tuple(inherited))
        self.id = secrets.token_hex(8)
        self._was_mapped = False
        self._awaited = frozenset()
        self.routing = None

        self._routed_incarnations = ()
        self._last_routed = ()

        self.initialized_epoch = 0
        self.first_step = self.global_step = self._checkpoint_step
        self.first_cursors = self._checkpoint_cursors
        self.pieces = book_of(self.first_cursors)

        for seat in self._roster.seats:
            seat.leased_until = 0.0  # who held it in another run reaches nobody of this one
            seat.has_lease = seat.has_lease and seat.is_connected

        for seat in self._roster.workers:
            seat.examples_before = 0
            seat.left_out_before = LeftOut()
            seat.progress = replace(
                seat.progress,
                position=0,
                total_batches=0,
                cursor=b"",
                examples=0,
                **asdict(LeftOut()),
            )


def _instance(incarnation: str) -> str:
    """What clients know a process by.

    Not its incarnation, with which anybody could take its seat.
    """
    return hashlib.sha256(incarnation.encode()).hexdigest()[:16]

"""The copy of a whole cluster: what it was started from, and which map it follows, or why none."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from megalith.control import retry
from megalith.control.controller import Controller
from megalith.errors import (
    InvalidRequest,
    MegalithError,
    NotReady,
    Overloaded,
    RunUndecided,
    StaleEpoch,
    TooStale,
)
from megalith.replica.copies.followed_servers import FollowedServers, HeldShare
from megalith.replica.copies.following import Following
from megalith.replica.copies.loaded_checkpoint import CheckpointLoader, LoadedCheckpoint
from megalith.replica.copies.model import ServedModel
from megalith.replica.copies.ps_copy import CopyCounts, PsCopy
from megalith.replica.copies.view import CopyFreshness, ModelView
from megalith.wire.routing import Routing, ps_names

logger = logging.getLogger(__name__)

_ASK_S = 1.0  # for the controller to answer
_ASK_AGAIN_S = 0.25  # after it did not, at most
# Who got no answer may believe a ps without a lease, for so long after the question. Less than a
# lease: a controller that began to serve after it names no other ps in that seat so soon.
_AWAY_S = 2.5
# Who answers so is there, though it has no map to give
_WORDS_OF_A_CONTROLLER = (NotReady, Overloaded, StaleEpoch)


@dataclass(frozen=True, slots=True)
class _State:
    """What is served, and what is true of it. One takes the place of another as a whole.

    `followings` are by index of the ps, those that were stopped too; none while it is rolled back.
    """

    model: ServedModel
    followings: tuple[Following, ...] = ()
    saved: LoadedCheckpoint | None = None  # what `model` began as
    run_id: str = ""  # of the rows, until all ps of `followings` have caught up
    stale_since_s: float = 0.0  # as long as one of them has not
    is_pinned: bool = False
    is_rolled_back: bool = False

    @property
    def has_caught_up(self) -> bool:
        """Whether every ps that is followed has sent everything once."""
        times = [each.copy.caught_up_s for each in self.followings]
        return bool(times) and None not in times

    @property
    def run_of_rows(self) -> str:
        """The run of all rows; an older one as long as rows of it may be left."""
        return self.followings[0].process.run_id if self.has_caught_up else self.run_id


class ClusterCopy:
    """Keeps a model equal to that of a job. Any thread may read.

    It loads the newest checkpoint, if it can, and then follows the ps. The map is asked for every
    `ask_every_s`. A controller that is away changes nothing: the ps of the last map are followed
    on. A copy that is pinned or rolled back follows nobody until it is unpinned.

    What is served and what is true of it change together, as one state that is never changed
    itself, so a reader takes no lock. `_changing` is held by whoever changes what is followed: the
    thread that watches the map, and calls to pin, unpin and roll back. It guards the map too.
    """

    def __init__(
        self,
        controller: Controller,
        share: HeldShare,
        servers: FollowedServers,
        checkpoints: CheckpointLoader,
        *,
        admit: Callable[[], None],
        start_rolled_back_to: str = "",
        ask_every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`admit` raises if the run that the controller has now may not be followed."""
        self._controller = controller
        self._share = share
        self._servers = servers
        self._checkpoints = checkpoints
        self._admit = admit
        self._rolls_back_first = start_rolled_back_to
        self._ask_every_s = ask_every_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._state = _State(ServedModel(0))
        self._changing = threading.Lock()
        self._routing: Routing | None = None
        self._away_until_s = float("-inf")  # the controller, as far as one may believe it
        self._was_ready = False
        self.started_from = ""  # for people: the checkpoint, or why there was none
        self.complaint = "the controller has not been asked yet"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch-map", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._checkpoints.stop()
        if self._thread.is_alive():
            self._thread.join()

        self._servers.stop()

    # --- reading ---

    @property
    def model(self) -> ServedModel:
        """What is served now. Whoever answers a request takes a `view` instead."""
        return self._state.model

    @property
    def followings(self) -> list[Following]:
        """By index of the ps; none before the first map, and while it is rolled back."""
        return list(self._state.followings)

    @property
    def counts(self) -> list[CopyCounts]:
        """What came from each ps, by index, since this replica started."""
        return self._servers.counts

    @property
    def hold(self) -> str:
        """Why it follows nobody, for people; empty = it follows."""
        return _hold(self._state)

    @property
    def is_ready(self) -> bool:
        """Whether it has had everything at least once."""
        return self._is_ready(self._state)

    def _is_ready(self, state: _State) -> bool:
        if not self._was_ready:
            self._was_ready = state.has_caught_up

        return self._was_ready

    def view(self, max_staleness_s: float = 0.0) -> ModelView:
        """What an answer of now is made of.

        NotReady before it has had everything once; TooStale beyond `max_staleness_s`, if given.
        """
        if max_staleness_s < 0:
            raise InvalidRequest(f"max_staleness_us: {max_staleness_s * 1e6:.0f} is below 0")

        state = self._state
        if not self._is_ready(state):
            raise NotReady(f"this replica has not got all rows yet: {self.what_is_missing()}")

        fresh = self._freshness_of(state)
        if max_staleness_s and fresh.staleness_s > max_staleness_s:
            hold = _hold(state)
            why = f" (it is {hold})" if hold else ""
            raise TooStale(
                f"this replica last had everything {fresh.staleness_s:.3f} s ago{why}, and "
                f"{max_staleness_s:.3f} s are allowed; ask another one"
            )

        return ModelView(state.model, fresh, self._share)

    def freshness(self, max_staleness_s: float = 0.0) -> CopyFreshness:
        """How fresh an answer of now is; raises as `view` does."""
        return self.view(max_staleness_s).freshness

    def _freshness_of(self, state: _State) -> CopyFreshness:
        saved = state.saved
        if state.is_rolled_back and saved is not None:
            age_s = max(0.0, self._wall_clock() - saved.saved_at_s)
            return CopyFreshness(
                age_s,
                (),
                state.run_id,
                saved.newest_data_s,
                checkpoint=saved.name,
                is_pinned=True,
            )

        run_id = state.run_of_rows  # before versions: these may only be newer
        staleness_s = self._clock() - self._complete_s(state)
        versions = []
        newest_data_s = 0
        for following in state.followings:
            if following.process.run_id == run_id:
                versions.append(following.copy.version)
            newest_data_s = max(newest_data_s, following.copy.newest_data_s)

        return CopyFreshness(
            staleness_s=max(0.0, staleness_s),
            versions=tuple(versions),
            run_id=run_id,
            newest_data_s=newest_data_s,
            is_pinned=state.is_pinned,
        )

    def _complete_s(self, state: _State) -> float:
        """When it had everything for the last time."""
        oldest_s = float("inf")
        for following in state.followings:
            caught_up_s = following.copy.caught_up_s
            if caught_up_s is None:
                return state.stale_since_s

            oldest_s = min(oldest_s, caught_up_s)

        return oldest_s if state.followings else state.stale_since_s

    def staleness_of(self, copy: PsCopy) -> float:
        """Seconds since it had everything of one ps; 0 if it never had."""
        if copy.caught_up_s is None:
            return 0.0

        return max(0.0, self._clock() - copy.caught_up_s)

    def what_is_missing(self) -> str:
        """Why it is not ready, for people."""
        followings = self.followings
        if not followings:
            return self.complaint

        late = []
        for following in followings:
            if following.copy.caught_up_s is None:
                what = following.complaint or "sends"
                late.append(f"ps-{following.copy.index} {what}")

        return "; ".join(late)

    @property
    def is_controller_away(self) -> bool:
        """Whether it was asked a moment ago, and did not say which ps there are."""
        return self._clock() < self._away_until_s

    # --- staying, and going back ---

    def pin(self) -> None:
        """Stay with what is here until `unpin`: nothing is applied any more.

        NotReady before it has had everything once, and while a ps sends all its rows: old ones are
        beside new ones then, and would stay so.
        """
        self.freshness()  # NotReady
        with self._changing:
            state = self._state
            if state.is_pinned:
                return

            _check_not_mixed(state)
            self._servers.stop()
            try:
                _check_not_mixed(state)  # a snapshot may have begun before the streams ended
            except NotReady:
                self._follow_again(state)
                raise

            self._state = replace(state, is_pinned=True)

        logger.warning("pinned")

    def roll_back(self, checkpoint: str) -> None:
        """Serve an earlier checkpoint until `unpin`.

        It is loaded beside the model that is served, and takes its place at once. An error changes
        nothing.
        """
        saved = self._checkpoints.named(checkpoint)
        with self._changing:
            self._servers.stop()
            self._servers.forget()
            self._state = _State(
                saved.model,
                saved=saved,
                run_id=self._state.run_of_rows,
                is_pinned=True,
                is_rolled_back=True,
            )
            self._was_ready = True

        logger.warning("rolled back to %s", saved.name)

    def unpin(self) -> None:
        """Follow again, from where it is; nothing happens if it does."""
        with self._changing:
            state = self._state
            if not state.is_pinned:
                return

            state = replace(
                state,
                stale_since_s=self._clock() - self._freshness_of(state).staleness_s,
                is_pinned=False,
                is_rolled_back=False,
            )
            self._follow_again(state)

        logger.warning("unpinned: it follows again")

    # --- the map ---

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
                self.complaint = ""
            except MegalithError as error:
                if self.complaint != str(error):
                    logger.warning("no new map: %s", error)

                self.complaint = str(error)
            except Exception:
                logger.exception("watching the map failed")

            wait_s = self._ask_every_s
            if self.is_controller_away:  # ask again while the last answer counts
                wait_s = min(wait_s, _ASK_AGAIN_S)

            self._stopping.wait(wait_s)

    def _ask(self) -> Routing:
        """The map; and remember whether the controller is there."""
        asked_s = self._clock()
        try:
            routing = self._controller.routing_now(_ASK_S, "")
        except retry.PASSING as error:
            is_word = isinstance(error, _WORDS_OF_A_CONTROLLER)
            is_there = is_word and not isinstance(error, RunUndecided)
            self._away_until_s = float("-inf") if is_there else asked_s + _AWAY_S
            raise

        self._away_until_s = float("-inf")
        return routing

    def _look(self) -> None:
        """Ask for the map, and follow its ps."""
        routing = self._ask()
        if not self.started_from:
            self._admit()
            self._start()

        with self._changing:
            if not self._state.is_pinned:
                self._use(routing)

    def _start(self) -> None:
        """Begin with a checkpoint, if there is one that can be loaded here."""
        if self._rolls_back_first:
            self.roll_back(self._rolls_back_first)
            self.started_from = f"checkpoint {self._rolls_back_first}, rolled back"
            return

        self.complaint = "it loads the newest checkpoint"
        try:
            saved = self._checkpoints.newest()
        except MegalithError as error:
            logger.warning("all rows come from the ps, no checkpoint was loaded: %s", error)
            self.started_from = f"snapshots of the ps: {error}"
            return

        if saved is None:
            self.started_from = "snapshots of the ps: there is no checkpoint"
            return

        self.started_from = f"checkpoint {saved.name}"
        with self._changing:
            if not self._state.is_pinned:  # it may have been rolled back meanwhile
                self._state = _State(saved.model, saved=saved)

    def _use(self, routing: Routing) -> None:
        before = self._routing
        if before is None or before.run_id != routing.run_id:
            self._admit()

        self._follow(routing, self._state)

    def _follow_again(self, state: _State) -> None:
        """From where it is, by the last map, if there was one."""
        if self._routing is None:
            self._state = state
        else:
            self._follow(self._routing, state)

    def _follow(self, routing: Routing, state: _State) -> None:
        """What is followed already, and the same, goes on. `state` is what comes of the present."""
        staleness_s = self._freshness_of(state).staleness_s if self.is_ready else 0.0
        stale_since_s = self._clock() - staleness_s
        save_id = "" if state.saved is None else state.saved.save_id
        is_new = self._servers.follow(routing, state.model, save_id)
        self._routing = routing
        if is_new:
            state = replace(
                state,
                followings=tuple(self._servers.all),
                run_id=state.run_of_rows,
                stale_since_s=stale_since_s,
            )
            logger.info("following run=%s epoch=%d", routing.run_id, routing.epoch)

        self._state = state


def _check_not_mixed(state: _State) -> None:
    mixed = {each.copy.index for each in state.followings if each.copy.is_mixed}
    for served in state.model.tables:
        mixed |= served.lacking

    if mixed:
        raise NotReady(
            f"{ps_names(sorted(mixed))} has not sent all rows yet, so old rows may be beside new "
            "ones; a pin would keep them so: pin again when the staleness is small again"
        )


def _hold(state: _State) -> str:
    if state.is_rolled_back and state.saved is not None:
        return f"rolled back to {state.saved.name}"

    return "pinned" if state.is_pinned else ""

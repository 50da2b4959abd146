"""The barrier between steps: training is held while anybody holds it.

Each holder lets go of its own hold only.
"""

import logging
from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum

from megalith.errors import BarrierAlreadyPlaced, InvalidRequest

logger = logging.getLogger(__name__)

KNOWN_ACTIONS = ("", "Save", "Stop")
_MAX_ACTION = 64
_MAX_REASON = 1024  # it goes to every member with each state, and into the journal
_MAX_UNKNOWN = 64  # actions that are remembered, so that each is logged once


class HolderKind(StrEnum):
    """Who holds training. The values are those of `Barrier.Holder.kind` on the wire."""

    OPERATOR = "operator"  # a person, until a person resumes
    SAVE = (
        "save"  # a checkpoint that is to be one moment; it lets go when it is written or has failed
    )
    HEALTH = "health"  # a ps complained, until a person resumes
    PLATFORM = "platform"  # the AppMaster was told to suspend, until it is told to resume
    ACTION = "action"  # a stop by file; it lets go when workers have heard of it


# Whoever holds for these lets go by itself, and dies with its controller.
_OF_ONE_CONTROLLER = (HolderKind.SAVE, HolderKind.ACTION)


@dataclass(frozen=True, slots=True)
class Holder:
    """One hold. `id` numbers holds over the whole job."""

    id: int
    kind: HolderKind
    action: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BarrierState:
    """Who holds training, the longest first; it runs when nobody does.

    `id` is the number of the newest hold, over the whole job: a worker that says it is blocked at
    that number has heard of every holder, and a quick remove and place is told apart.
    """

    id: int = 0
    holders: tuple[Holder, ...] = ()

    @property
    def is_placed(self) -> bool:
        return bool(self.holders)

    @property
    def lasting(self) -> tuple[Holder, ...]:
        """The holders that outlive the controller which they asked."""
        return tuple(holder for holder in self.holders if holder.kind not in _OF_ONE_CONTROLLER)

    @property
    def action(self) -> str:
        """Of whoever holds longest; empty when nobody holds."""
        return self.holders[0].action if self.holders else ""

    @property
    def reason(self) -> str:
        """Of whoever holds longest; empty when nobody holds."""
        return self.holders[0].reason if self.holders else ""


class Barrier:
    """Whether training is held, and by whom. Not thread-safe: the coordinator's lock guards it."""

    def __init__(self) -> None:
        self.state = BarrierState()
        self._unknown_actions: deque[str] = deque(maxlen=_MAX_UNKNOWN)

    def place(
        self, action: str = "", reason: str = "operator", kind: HolderKind = HolderKind.OPERATOR
    ) -> BarrierState:
        """Add a hold. BarrierAlreadyPlaced if one of that kind is there.

        Saves are counted instead. A stop by file is an operator's too, so it is refused while an
        operator holds.
        """
        is_operators = kind is HolderKind.ACTION and self.is_held_by(HolderKind.OPERATOR)
        is_twice = kind is not HolderKind.SAVE and self.is_held_by(kind)
        if is_operators or is_twice:
            raise BarrierAlreadyPlaced("Barrier is placed already.")

        if len(action) > _MAX_ACTION:
            raise InvalidRequest(
                f"a barrier's action has at most {_MAX_ACTION} characters, got {len(action)}"
            )

        if len(reason) > _MAX_REASON:
            raise InvalidRequest(
                f"a barrier's reason has at most {_MAX_REASON} characters, got {len(reason)}"
            )

        if action not in (*KNOWN_ACTIONS, *self._unknown_actions):
            self._unknown_actions.append(action)
            logger.warning(
                "unknown barrier action %r: workers hold, and only a task's on_barrier acts on it",
                action,
            )

        holder = Holder(self.state.id + 1, kind, action, reason)
        self.state = BarrierState(holder.id, (*self.state.holders, holder))
        return self.state

    def is_held_by(self, kind: HolderKind) -> bool:
        return any(holder.kind is kind for holder in self.state.holders)

    def let_go(self, holder_id: int) -> None:
        """End that one hold; one that has ended already changes nothing."""
        kept = []
        for holder in self.state.holders:
            if holder.id != holder_id:
                kept.append(holder)

        self.state = replace(self.state, holders=tuple(kept))

    def remove(self, *kinds: HolderKind) -> None:
        """End all holds of these kinds, or of every kind. Never fails.

        Removing what is not there changes nothing.
        """
        kept = []
        if kinds:
            kept = [holder for holder in self.state.holders if holder.kind not in kinds]

        self.state = replace(self.state, holders=tuple(kept))

    def restore(self, state: BarrierState) -> None:
        """Go on with the holds of an earlier controller, whose callbacks were called then.

        What it held for a save or a stop by file died with it. The file is still there and is
        obeyed again.
        """
        self.state = replace(state, holders=state.lasting)

"""The barrier between steps: placed by an operator, a save or a health check, obeyed at the next step boundary."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from megalith.wire.errors import BarrierAlreadyPlaced, InvalidRequest

logger = logging.getLogger(__name__)

KNOWN_ACTIONS = ("", "Save", "Stop")
_MAX_ACTION = 64


@dataclass(frozen=True, slots=True)
class BarrierState:
    """The newest barrier. `id` counts barriers over the whole job, so that a quick remove and place is told apart."""

    id: int = 0
    is_placed: bool = False
    action: str = ""
    reason: str = ""


class Barrier:
    """Whether training is held, and why. Not thread-safe: the coordinator's lock guards it.

    Callbacks get the action of each barrier once, when it is placed; they must not block.
    """

    def __init__(self) -> None:
        self.state = BarrierState()
        self._callbacks: list[Callable[[str], None]] = []
        self._unknown_actions: set[str] = set()

    def add_callback(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    def place(self, action: str = "", reason: str = "operator") -> BarrierState:
        if self.state.is_placed:
            raise BarrierAlreadyPlaced("Barrier is placed already.")
        if len(action) > _MAX_ACTION:
            raise InvalidRequest(f"a barrier's action has at most {_MAX_ACTION} characters, got {len(action)}")
        if action not in (*KNOWN_ACTIONS, *self._unknown_actions):
            self._unknown_actions.add(action)
            logger.warning("unknown barrier action %r: workers hold, and only a task's on_barrier acts on it", action)
        self.state = BarrierState(self.state.id + 1, True, action, reason)
        for callback in self._callbacks:
            callback(action)
        return self.state

    def remove(self) -> None:
        """Never fails; removing what is not there changes nothing."""
        self.state = replace(self.state, is_placed=False, action="", reason="")

    def restore(self, state: BarrierState) -> None:
        """Go on with the barrier of an earlier controller, whose callbacks were called then."""
        self.state = state

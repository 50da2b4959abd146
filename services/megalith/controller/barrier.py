"""The barrier between steps: placed by an operator or a save, obeyed by every worker at its next step boundary."""

from megalith.wire.errors import BarrierAlreadyPlaced


class Barrier:
    """Whether training is held, and why. Not thread-safe: the cluster's lock guards it."""

    def __init__(self) -> None:
        self.is_placed = False
        self.action = ""

    def place(self, action: str = "") -> None:
        if self.is_placed:
            raise BarrierAlreadyPlaced("Barrier is placed already.")
        self.is_placed, self.action = True, action

    def remove(self) -> None:
        """Never fails; removing what is not there changes nothing."""
        self.is_placed, self.action = False, ""

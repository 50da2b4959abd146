"""Values of dense variables that all replicas are sent: copied once, on a clock of their own."""

import math
import threading
from collections.abc import Mapping, Sequence

from megalith.engine.variable.variable import Variable, VariableValue


class SharedVariables:
    """The values as they were at most `every_s` before a version; of each version with 0.

    In training every variable changes with every push, so a version that had them all would be
    little else. Nobody changes a value that was given out.

    `_lock` guards the values and when they were taken. It is held while those that changed are
    copied, so that a second replica waits for them instead of doing the same.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        self._taken_s = -math.inf
        self._values: dict[str, VariableValue] = {}

    def values(self, variables: Sequence[Variable], sealed_s: float) -> Mapping[str, VariableValue]:
        """By name of the variable or part, for a version that was sealed at `sealed_s`.

        Values that are new enough for a version are taken again if a variable is not among them.
        """
        with self._lock:
            is_due = sealed_s > self._taken_s and sealed_s - self._taken_s >= self._every_s
            if is_due or any(each.config.part_name not in self._values for each in variables):
                self._values = {each.config.part_name: self._value_of(each) for each in variables}
                self._taken_s = max(sealed_s, self._taken_s)

            return self._values

    def _value_of(self, variable: Variable) -> VariableValue:
        """Copied only if it changed."""
        held = self._values.get(variable.config.part_name)
        if held is not None and held.change == variable.change:
            return held

        return variable.read_numbered()

"""A batch in parts that threads compute at the same time.

Each thread takes a run of the examples through the model and back. Threads of matrix products
themselves wait actively for each other, and leave everything between two products to one core.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")


class Parts:
    """Computes `num_threads` runs of examples at once, the first of them in the calling thread.

    For one caller at a time. Its threads are started when they are needed first.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None

    def compute(self, num_examples: int, part: Callable[[int, int], R]) -> Sequence[R]:
        """What `part(start, stop)` returns for each run, in order.

        An error of a part is raised after all of them have ended.
        """
        count = max(1, min(self._num_threads, num_examples))
        if count == 1:
            return [part(0, num_examples)]

        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads - 1, "part of a batch")

        bounds = [num_examples * number // count for number in range(count + 1)]
        others = []
        for number in range(1, count):
            others.append(self._pool.submit(part, bounds[number], bounds[number + 1]))

        try:
            first = part(bounds[0], bounds[1])
        finally:
            errors = [other.exception() for other in others]

        for error in errors:
            if error is not None:
                raise error

        return [first, *(other.result() for other in others)]

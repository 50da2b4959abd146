"""What a collective library has to do, and the engine of one rank, which needs no library."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]
Counts = NDArray[np.int64]


class Engine(ABC):
    """The calls that `Ranks` is made of. Every rank makes the same calls in the same order.

    A call that waits too long for another rank raises RankSilent, which names the ranks that are
    missing as far as that is known. After an error no further call is made. For one thread.
    """

    name: str
    rank: int
    size: int

    @abstractmethod
    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """The arrays of all ranks, of one shape and dtype, as rows of a larger one."""

    @abstractmethod
    def exchange(self, sent: Bytes, sent_counts: Counts, received_counts: Counts) -> Bytes:
        """Send each rank its part of `sent`; the parts that they have sent here, by rank."""

    @abstractmethod
    def total(self, values: F32) -> F32:
        """The sum over all ranks, the same bits on each of them."""

    def tell_failure(self, reason: str) -> None:
        """Say why this rank goes, where others look once they miss it."""
        return None

    def abort(self) -> None:
        """End what can be ended of the other ranks; this one exits next."""
        return None

    def close(self) -> None:
        """Called once, when all ranks have made their last call."""
        return None


class OneRank(Engine):
    """A process alone."""

    name = "one"
    rank = 0
    size = 1

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[np.newaxis]

    def exchange(self, sent: Bytes, sent_counts: Counts, received_counts: Counts) -> Bytes:
        return sent

    def total(self, values: F32) -> F32:
        return values

"""Ranks by Horovod, or by a library with the same calls, such as BytePS.

Six calls are all that such a library is asked for: init, rank, size, allgather, broadcast and
broadcast_variables. So sums and exchanges are made of gathers, which moves more bytes than they
need. Neither library has a wheel that could be tested here: the tests pass in an object with these
six calls.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from megalith.collective.engine import F32, Bytes, Counts, Engine
from megalith.errors import InvalidSetting

WITH_BYTEPS = "MONOLITH_WITH_BYTEPS"


class SixCalls(Protocol):
    """What Horovod, BytePS and Monolith's own wrapper of them have in common."""

    def init(self) -> None: ...

    def rank(self) -> int: ...

    def size(self) -> int: ...

    def allgather(self, tensor: Any, name: str | None = None) -> Any:
        """The tensors of all ranks behind each other; their first dimensions may differ."""

    def broadcast(self, tensor: Any, root_rank: int, name: str | None = None) -> Any: ...

    def broadcast_variables(self, variables: Any, root_rank: int) -> Any: ...


class HorovodEngine(Engine):
    """Ranks by the six calls of a library."""

    name = "horovod"

    def __init__(self, library: SixCalls) -> None:
        self._library = library
        library.init()
        self.rank = library.rank()
        self.size = library.size()

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        sent = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        received = self._gathered(sent)
        return received.view(values.dtype).reshape(self.size, *values.shape)

    def exchange(self, sent: Bytes, sent_counts: Counts, received_counts: Counts) -> Bytes:
        all_counts = self.gather(np.asarray(sent_counts, np.int64))
        everything = self._gathered(sent)
        ends = np.cumsum(all_counts.reshape(-1)).reshape(self.size, self.size)

        parts = []
        for rank in range(self.size):
            end = ends[rank, self.rank]
            begin = end - all_counts[rank, self.rank]
            parts.append(everything[begin:end])

        return np.concatenate(parts)

    def total(self, values: F32) -> F32:
        summed: F32 = self.gather(values).sum(0, dtype=np.float32)
        return summed

    def _gathered(self, sent: Bytes) -> Bytes:
        return np.ascontiguousarray(np.asarray(self._library.allgather(sent)), np.uint8)


def module_name(environ: Mapping[str, str]) -> str:
    """BytePS if MONOLITH_WITH_BYTEPS is set and not 0, else Horovod."""
    is_byteps = environ.get(WITH_BYTEPS, "0").strip() not in ("", "0")
    return "byteps.tensorflow" if is_byteps else "horovod.tensorflow"


def load_library(name: str) -> SixCalls:
    try:
        library: Any = import_module(name)
    except ImportError as error:
        package, _, _ = name.partition(".")
        raise InvalidSetting(
            f"--collective={package}: {name} cannot be imported ({error}); install {package} as "
            "its pages say, or use --collective mpi or gloo"
        ) from error

    found: SixCalls = library
    return found

"""One table of embedding rows, by id."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.ps.kernels import index, rows, updates
from megalith.wire.errors import (
    DuplicateKeys,
    NonFiniteValue,
    ShapeMismatch,
    TableConflict,
    UnsupportedLayout,
)
from megalith.wire.schema import Adagrad, RandomUniform, Sgd, TableConfig

_FIRST_CAPACITY = 1024
_MAX_LOAD = 0.5  # of the index; a probe then looks at 1.5 slots on average


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Whole rows, as a checkpoint holds them: row i belongs to keys[i]."""

    keys: NDArray[np.int64]
    values: NDArray[np.float32]  # [n, width]: embedding, then optimizer state
    updated_s: NDArray[np.uint32]  # data time of the last update


class EmbeddingTable:
    """Rows by id, trained in place.

    One lock guards everything: the index, the rows and the configuration. It is held for one batch at a time, so a
    save that copies slice by slice lets updates in between, and every copied row is whole.
    """

    def __init__(self, config: TableConfig) -> None:
        if len(config.segments) != 1:
            raise UnsupportedLayout(
                f"table {config.name}: {len(config.segments)} segments; this version holds one per table"
            )
        self._lock = threading.Lock()
        self._config = config
        self._dim = config.dim
        self._width = self._dim + _state_width(config)
        self._size = 0
        self._slots = np.full(2 * _FIRST_CAPACITY, index.EMPTY, np.int64)
        self._keys = np.empty(_FIRST_CAPACITY, np.int64)
        self._values = np.empty((_FIRST_CAPACITY, self._width), np.float32)
        self._updated_s = np.zeros(_FIRST_CAPACITY, np.uint32)

    @property
    def config(self) -> TableConfig:
        return self._config

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """Memory of rows and index."""
        with self._lock:
            return self._slots.nbytes + self._keys.nbytes + self._values.nbytes + self._updated_s.nbytes

    def reconfigure(self, config: TableConfig) -> None:
        """Take new settings, such as a learning rate; rows of another layout are a TableConflict."""
        self.check_layout(config)
        with self._lock:
            self._config = config

    def check_layout(self, config: TableConfig) -> None:
        if config.layout != self._config.layout:
            raise TableConflict(
                f"table {config.name} exists with rows {self._config.layout}, asked for {config.layout}; "
                "use another name, or start from an empty model directory"
            )

    def lookup(self, keys: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embeddings in the order of `keys`; an id that is not in the table reads zeros and is not added."""
        located = np.empty(keys.size, np.int64)
        out = np.empty((keys.size, self._dim), np.float32)
        with self._lock:
            index.find(self._slots, keys, located)
            rows.gather(self._values, located, out)
        return out

    def check_gradients(
        self, keys: NDArray[np.int64], grads: NDArray[np.float32], learning_rates: tuple[float, ...]
    ) -> None:
        """Raise what apply_gradients would refuse, changing nothing."""
        name = self._config.name
        if grads.shape != (keys.size, self._dim):
            raise ShapeMismatch(
                f"table {name}: gradients {list(grads.shape)} for {keys.size} ids of dim {self._dim}; "
                f"expected {[keys.size, self._dim]}"
            )
        if len(learning_rates) not in (0, len(self._config.segments)):
            raise ShapeMismatch(
                f"table {name}: {len(learning_rates)} learning rates for {len(self._config.segments)} segments"
            )
        if not np.isfinite(learning_rates).all():
            raise NonFiniteValue(f"table {name}: the learning rates {list(learning_rates)} hold NaN or infinity")
        if not np.isfinite(grads).all():
            bad = int(keys[np.flatnonzero(~np.isfinite(grads).all(axis=1))[0]])
            raise NonFiniteValue(f"table {name}: the gradient of id {bad} holds NaN or infinity; nothing was applied")
        if np.unique(keys).size != keys.size:
            raise DuplicateKeys(f"table {name}: ids of a push must be distinct; sum the gradients of equal ids first")

    def apply_gradients(
        self,
        keys: NDArray[np.int64],
        grads: NDArray[np.float32],
        learning_rates: tuple[float, ...] = (),
        req_time_s: int = 0,
    ) -> None:
        """One optimizer step per id; an unknown id is added first. All of it, or an error and nothing."""
        self.check_gradients(keys, grads, learning_rates)
        located = np.empty(keys.size, np.int64)
        with self._lock:
            self._locate_or_add(keys, located)
            self._step(located, grads, learning_rates)
            self._updated_s[located] = req_time_s

    def load(self, batch: RowBatch) -> None:
        """Put whole rows in place, replacing those of the same ids."""
        if batch.values.shape != (batch.keys.size, self._width):
            raise ShapeMismatch(
                f"table {self._config.name}: rows {list(batch.values.shape)}, expected {[batch.keys.size, self._width]}"
            )
        located = np.empty(batch.keys.size, np.int64)
        with self._lock:
            self._locate_or_add(batch.keys, located)
            self._values[located] = batch.values
            self._updated_s[located] = batch.updated_s

    def dump(self, keys: NDArray[np.int64]) -> RowBatch:
        """Whole rows of those `keys` that are in the table."""
        located = np.empty(keys.size, np.int64)
        with self._lock:
            index.find(self._slots, keys, located)
            present = located != index.EMPTY
            held = located[present]
            return RowBatch(keys[present], self._values[held], self._updated_s[held])

    def keys(self) -> NDArray[np.int64]:
        """A copy of all ids."""
        with self._lock:
            return self._keys[: self._size].copy()

    def _locate_or_add(self, keys: NDArray[np.int64], located: NDArray[np.int64]) -> None:
        self._reserve(self._size + keys.size)
        before = self._size
        self._size = index.insert(self._slots, keys, before, located)
        if self._size == before:
            return
        is_new = located >= before
        self._keys[located[is_new]] = keys[is_new]
        self._start_rows(before)

    def _start_rows(self, first: int) -> None:
        segment = self._config.segments[0]
        fresh = slice(first, self._size)
        self._updated_s[fresh] = 0
        match segment.initializer:
            case RandomUniform(minval, maxval):
                keys = self._keys[fresh]
                rows.start_uniform(self._values, keys, first, self._dim, np.float32(minval), np.float32(maxval))
            case _:
                self._values[fresh, : self._dim] = 0
        if isinstance(segment.optimizer, Adagrad):
            self._values[fresh, self._dim :] = segment.optimizer.initial_accumulator_value

    def _step(self, located: NDArray[np.int64], grads: NDArray[np.float32], learning_rates: tuple[float, ...]) -> None:
        optimizer = self._config.segments[0].optimizer
        lr = np.float32(learning_rates[0] if learning_rates else optimizer.learning_rate)
        match optimizer:
            case Sgd():
                updates.sgd(self._values, located, grads, lr)
            case Adagrad(weight_decay_factor=decay):
                updates.adagrad(self._values, located, grads, lr, np.float32(decay))

    def _reserve(self, rows_needed: int) -> None:
        """Make room in the index and the rows; both double."""
        capacity = self._keys.size
        while capacity < rows_needed:
            capacity *= 2
        if capacity > self._keys.size:
            # All of them exist before the first is replaced: running out of memory leaves the table as it was.
            columns = [_grown(column, capacity, self._size) for column in (self._keys, self._values, self._updated_s)]
            self._keys, self._values, self._updated_s = columns
        slots = self._slots.size // 2
        while rows_needed > slots * _MAX_LOAD:
            slots *= 2
        if slots > self._slots.size // 2:
            grown = np.full(2 * slots, index.EMPTY, np.int64)
            index.insert(grown, self._keys[: self._size], 0, np.empty(self._size, np.int64))
            self._slots = grown


def _state_width(config: TableConfig) -> int:
    return config.dim if isinstance(config.segments[0].optimizer, Adagrad) else 0


def _grown(array: NDArray[Any], capacity: int, used: int) -> NDArray[Any]:
    grown = np.empty((capacity, *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown


def sliced(keys: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    """`keys` in runs of at most `size`."""
    return (keys[start : start + size] for start in range(0, keys.size, size))

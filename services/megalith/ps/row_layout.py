"""What a row of a table looks like: [embedding | state of segment 0 | state of segment 1 | ...], all float32."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from megalith.ps.initializer import Random, row_initializer
from megalith.ps.kernels.dtypes import F32
from megalith.ps.kernels.segments import segment_type
from megalith.ps.optimizer import RowOptimizer, row_optimizer
from megalith.ps.retriever import retriever_for
from megalith.wire.errors import InvalidRequest, NonFiniteValue, ShapeMismatch
from megalith.wire.schema import TableConfig


class RowLayout:
    """Offsets, first values and optimizers of a table's rows; immutable."""

    def __init__(self, config: TableConfig) -> None:
        dims = [segment.dim for segment in config.segments]
        self.dims = tuple(dims)
        self.dim = sum(dims)
        self.optimizers: tuple[RowOptimizer, ...] = tuple(
            row_optimizer(s.optimizer, s.dim, s.compressor) for s in config.segments
        )
        self.retrievers = tuple(retriever_for(segment.compressor) for segment in config.segments)
        self._initializers = tuple(row_initializer(s.initializer, s.dim) for s in config.segments)
        self._config = config
        states = [optimizer.state_width for optimizer in self.optimizers]
        self.weight_offsets = tuple(int(x) for x in np.cumsum([0, *dims[:-1]]))
        self.state_offsets = tuple(int(x) for x in self.dim + np.cumsum([0, *states[:-1]]))
        self.width = self.dim + sum(states)
        self.template = self._make_template()
        self.fills = tuple(
            segment_type(initializer.name)(w, dim, config.seed, initializer.params)
            for initializer, w, dim in zip(
                self._initializers, self.weight_offsets, dims, strict=True
            )
            if isinstance(initializer, Random)
        )

    @property
    def signature(self) -> str:
        """What two tables must share for one to load the other's rows: "1:ftrl,16:adagrad"."""
        return ",".join(
            f"{dim}:{optimizer.name}"
            for dim, optimizer in zip(self.dims, self.optimizers, strict=True)
        )

    @property
    def state_fields(self) -> list[dict[str, int | str]]:
        """Which floats of the state are what: segment, name, first float and how many, for readers of checkpoints."""
        return [
            {
                "segment": number,
                "name": field.name,
                "first": offset - self.dim + field.offset,
                "width": field.width,
            }
            for number, (optimizer, offset) in enumerate(
                zip(self.optimizers, self.state_offsets, strict=True)
            )
            for field in optimizer.fields
        ]

    @property
    def gradient_width(self) -> int:
        """Columns of a push: the gradients, then, for optimizers that ask for them, the weights they belong to."""
        return self.dim * (2 if any(optimizer.takes_pulled for optimizer in self.optimizers) else 1)

    def rates(self, rates: Sequence[float] | F32 | None, step: int) -> F32:
        """One learning rate for each segment: the caller's, or the optimizers' own at this step."""
        if rates is None:
            return self._config.learning_rates(step)
        given = np.asarray(rates, np.float32)
        if given.shape != (len(self.dims),):
            raise ShapeMismatch(
                f"learning rates of shape {given.shape}, but the table has {len(self.dims)} segments"
            )
        if not np.isfinite(given).all():
            raise NonFiniteValue(f"learning rates {given.tolist()} are not all finite")
        if (given < 0).any():
            raise InvalidRequest(
                f"learning rates {given.tolist()} are not all 0 or more: rows would climb"
            )
        return given

    def stages(self, rates: F32) -> tuple[Any, ...]:
        """What an update runs on a row, as kernels take it: the stages of all optimizers, one after the other."""
        parts = zip(
            self.optimizers, self.weight_offsets, self.state_offsets, self.dims, rates, strict=True
        )
        return tuple(
            segment_type(stage.name)(w, s, w, dim, rate, stage.params)
            for optimizer, w, s, dim, rate in parts
            for stage in optimizer.stages
        )

    def _make_template(self) -> F32:
        embedding = [
            np.full(dim, 0.0 if isinstance(initializer, Random) else initializer, np.float32)
            for initializer, dim in zip(self._initializers, self.dims, strict=True)
        ]
        return np.concatenate(
            [*embedding, *(optimizer.initial_state for optimizer in self.optimizers)]
        )

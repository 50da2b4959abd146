"""What a row of a table looks like, all in float32.

[embedding | state of segment 0 | state of segment 1 | ...]
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from megalith.engine.kernels.segments import segment_type
from megalith.engine.segments.initializer import Random, row_initializer
from megalith.engine.segments.optimizer import row_optimizer
from megalith.engine.segments.retriever import retriever_for
from megalith.errors import InvalidRequest, NonFiniteValue, ShapeMismatch
from megalith.kernels.dtypes import F32
from megalith.schema import TableConfig


class RowLayout:
    """Offsets, first values and optimizers of a table's rows.

    Nothing here changes but one number: the rounding of weights counts its calls in its parameters
    (kernels/optimizers/rounding.py says why that needs no lock).
    """

    def __init__(self, config: TableConfig) -> None:
        segments = config.segments
        self._config = config
        self.dims = tuple(segment.dim for segment in segments)
        self.dim = sum(self.dims)

        optimizers = []
        retrievers = []
        initializers = []
        for segment in segments:
            optimizer = row_optimizer(segment.optimizer, segment.dim, segment.compressor)
            optimizers.append(optimizer)

            retriever = retriever_for(segment.compressor)
            retrievers.append(retriever)

            initializer = row_initializer(segment.initializer, segment.dim)
            initializers.append(initializer)

        self.optimizers = tuple(optimizers)
        self.retrievers = tuple(retrievers)
        self._initializers = tuple(initializers)

        states = [optimizer.state_width for optimizer in self.optimizers]
        self.weight_offsets = _offsets(0, self.dims)
        self.state_offsets = _offsets(self.dim, states)

        self.width = self.dim + sum(states)
        self.template = self._make_template()
        self.fills = self._make_fills()

    @property
    def signature(self) -> str:
        """What two tables must share for one to load the other's rows: "1:ftrl,16:adagrad"."""
        parts: list[str] = []
        for dim, optimizer in zip(self.dims, self.optimizers, strict=True):
            parts.append(f"{dim}:{optimizer.name}")

        return ",".join(parts)

    @property
    def state_fields(self) -> list[dict[str, int | str]]:
        """Which floats of the state are what, for readers of checkpoints."""
        described: list[dict[str, int | str]] = []
        for number, optimizer in enumerate(self.optimizers):
            begin = self.state_offsets[number] - self.dim
            for field in optimizer.fields:
                described.append(
                    {
                        "segment": number,
                        "name": field.name,
                        "first": begin + field.offset,
                        "width": field.width,
                    }
                )

        return described

    @property
    def gradient_width(self) -> int:
        """Columns of a push: gradients, then the weights they belong to, if one asks for them."""
        if any(optimizer.takes_pulled for optimizer in self.optimizers):
            return 2 * self.dim

        return self.dim

    def rates(self, rates: Sequence[float] | F32 | None, step: int) -> F32:
        """One learning rate for each segment: the caller's, or the optimizers' own at this step."""
        if rates is None:
            return self._config.learning_rates(step)

        given = np.asarray(rates, np.float32)
        if given.shape != (len(self.dims),):
            raise ShapeMismatch(
                f"learning rates of shape {given.shape}, "
                f"but the table has {len(self.dims)} segments"
            )

        if not np.isfinite(given).all():
            raise NonFiniteValue(f"learning rates {given.tolist()} are not all finite")

        if (given < 0).any():
            raise InvalidRequest(
                f"learning rates {given.tolist()} are not all 0 or more: rows would climb"
            )

        return given

    def stages(self, rates: F32) -> tuple[Any, ...]:
        """What an update runs on a row, as kernels take it: the stages of all optimizers."""
        segments = zip(
            self.optimizers,
            self.weight_offsets,
            self.state_offsets,
            self.dims,
            rates,
            strict=True,
        )

        stages = []
        for optimizer, w, s, dim, rate in segments:
            for stage in optimizer.stages:
                step = segment_type(stage.name)
                stages.append(step(w, s, w, dim, rate, stage.params))

        return tuple(stages)

    def _make_template(self) -> F32:
        """The first values of a row, with zeros where they are random."""
        parts = []
        for initializer, dim in zip(self._initializers, self.dims, strict=True):
            first = 0.0 if isinstance(initializer, Random) else initializer
            parts.append(np.full(dim, first, np.float32))

        for optimizer in self.optimizers:
            parts.append(optimizer.initial_state)

        return np.concatenate(parts)

    def _make_fills(self) -> tuple[Any, ...]:
        """The random initializers, as kernels take them."""
        fills = []
        segments = zip(self._initializers, self.weight_offsets, self.dims, strict=True)

        for initializer, w, dim in segments:
            if isinstance(initializer, Random):
                make = segment_type(initializer.name)
                fill = make(w, dim, self._config.seed, initializer.params)
                fills.append(fill)

        return tuple(fills)


def _offsets(begin: int, widths: Sequence[int]) -> tuple[int, ...]:
    """Where each of several parts begins, one after the other from `begin` on."""
    offsets = []
    for width in widths:
        offsets.append(begin)
        begin += width

    return tuple(offsets)

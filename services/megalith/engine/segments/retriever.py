"""Reading training rows the way serving will show them.

So a model learns with the coarse values that it gets later.

The compressor of a segment decides: fp32 and fp16 rows are read as they are; fixed_r8 rows are read
quantized, and the gradient passes straight through; one_bit rows are read through a tanh that
steepens as training goes on (HashNet), and the gradient is multiplied by its derivative: that is a
stage of the update (`optimizer.row_optimizer`).
"""

from typing import Protocol

import numpy as np

from megalith.engine.kernels import retrieve
from megalith.kernels.dtypes import F32
from megalith.schema.compressors import Compressor, FixedR8, Fp16, Fp32, OneBit


class Retriever(Protocol):
    """One segment's view of its weights. Any thread may call any method."""

    def forward(self, out: F32, column: int, dim: int) -> None:
        """Turn the weights in out[:, column : column + dim] into what a lookup returns."""

    def advance(self, step: int) -> None:
        """Take note of the step of an update, which later lookups follow."""


class RawRetriever:
    """Lookups return the weights."""

    def forward(self, out: F32, column: int, dim: int) -> None:
        pass

    def advance(self, step: int) -> None:
        pass


class FakeQuantRetriever:
    """Lookups return the nearest multiple of r/128 that fixed_r8 can store."""

    def __init__(self, config: FixedR8) -> None:
        unit = np.float32(config.r) / np.float32(128)
        self._params = np.array([unit], np.float32)

    def forward(self, out: F32, column: int, dim: int) -> None:
        retrieve.forward_fixed_r8(out, column, dim, self._params)

    def advance(self, step: int) -> None:
        pass


class HashNetRetriever:
    """Lookups return amplitude * tanh(scale * w), at the scale of the last update's step.

    The scale is a function of the step, so a restarted server goes on with the right one at its
    first update; until then lookups use the initial scale. (Monolith keeps it as state that is
    not saved, and misses a stair when no update arrives at exactly that step.) The scale is
    replaced by a single assignment, so no lock is needed.
    """

    def __init__(self, config: OneBit) -> None:
        self._params = hash_net_params(config)
        self.scale = self._params[1]

    def forward(self, out: F32, column: int, dim: int) -> None:
        amplitude = self._params[0]
        params = np.array([amplitude, self.scale], np.float32)
        retrieve.forward_one_bit(out, column, dim, params)

    def advance(self, step: int) -> None:
        self.scale = retrieve.hash_net_scale(self._params, step)


def hash_net_params(config: OneBit) -> F32:
    """What `retrieve.hash_net_scale` and the hash_net stage take."""
    return np.array(
        [config.amplitude, config.init_scale, config.max_scale, config.step_size], np.float32
    )


def retriever_for(compressor: Compressor) -> Retriever:
    """The retriever of a training segment that serving will store with `compressor`."""
    match compressor:
        case Fp32() | Fp16():
            return RawRetriever()
        case FixedR8():
            return FakeQuantRetriever(compressor)
        case OneBit():
            return HashNetRetriever(compressor)

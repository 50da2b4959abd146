"""Reading training rows the way serving will show them, so that a model learns with the coarse values it gets later.

The compressor of a segment decides: fp32 and fp16 rows are read as they are; fixed_r8 rows are read quantized, and the
gradient passes straight through; one_bit rows are read through a tanh that steepens as training goes on (HashNet).
"""

import math
from typing import Protocol

import numpy as np

from megalith.ps.kernels import retrieve
from megalith.ps.kernels.dtypes import F32, I64
from megalith.wire.compressors import Compressor, FixedR8, Fp16, Fp32, OneBit

SCALE_GROWTH = 0.005


class Retriever(Protocol):
    """One segment's view of its weights. Any thread may call any method."""

    def forward(self, out: F32, column: int, dim: int) -> None:
        """Turn stored weights, copied to out[:, column : column + dim], into what a lookup returns."""

    def backward(self, values: F32, starts: I64, w: int, grads: F32, g: int, dim: int, step: int) -> F32:
        """The gradients that the optimizer gets in columns g .. g + dim: `grads` itself, or a changed copy."""


class RawRetriever:
    """Lookups return the weights."""

    def forward(self, out: F32, column: int, dim: int) -> None:
        pass

    def backward(self, values: F32, starts: I64, w: int, grads: F32, g: int, dim: int, step: int) -> F32:
        return grads


class FakeQuantRetriever:
    """Lookups return the nearest multiple of r/128 that fixed_r8 can store; gradients pass unchanged."""

    def __init__(self, r: float) -> None:
        self._params = np.array([np.float32(r) / np.float32(128)], np.float32)

    def forward(self, out: F32, column: int, dim: int) -> None:
        retrieve.forward_fixed_r8(out, column, dim, self._params)

    def backward(self, values: F32, starts: I64, w: int, grads: F32, g: int, dim: int, step: int) -> F32:
        return grads


class HashNetRetriever:
    """Lookups return amplitude * tanh(scale * w).

    The scale is a function of the step, so a restarted server goes on with the right one at its first update; until
    then lookups use the initial scale. (The reference keeps it as state that is not saved, and misses a stair when no
    update arrives at exactly that step.) The scale is replaced by a single assignment, so no lock is needed.
    """

    def __init__(self, config: OneBit) -> None:
        self._config = config
        self.scale = np.float32(config.init_scale)

    def scale_at(self, step: int) -> np.float32:
        """The scale from the last multiple of step_size at or before `step`."""
        stair = step - step % self._config.step_size
        return np.float32(min(self._config.init_scale * math.sqrt(1 + SCALE_GROWTH * stair), self._config.max_scale))

    def forward(self, out: F32, column: int, dim: int) -> None:
        retrieve.forward_one_bit(out, column, dim, self._params())

    def backward(self, values: F32, starts: I64, w: int, grads: F32, g: int, dim: int, step: int) -> F32:
        self.scale = self.scale_at(step)
        out = grads.copy()
        retrieve.backward_one_bit(values, starts, w, grads, g, dim, self._params(), out)
        return out

    def _params(self) -> F32:
        return np.array([self._config.amplitude, self.scale], np.float32)


def retriever_for(compressor: Compressor) -> Retriever:
    """The retriever of a training segment that serving will store with `compressor`."""
    match compressor:
        case Fp32() | Fp16():
            return RawRetriever()
        case FixedR8(r):
            return FakeQuantRetriever(r)
        case OneBit():
            return HashNetRetriever(compressor)

"""Shampoo on one variable, see `megalith.schema.dense_optimizers.Shampoo` for the formulas."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.errors import InvalidRequest
from megalith.kernels.dtypes import F32
from megalith.schema import DenseOptimizer, Shampoo

_SUMMED = 1 - 1e-10  # from this beta_2 on statistics are summed, not averaged


class ShampooState:
    """A value with its statistics, preconditioners and running means.

    Fields, for each axis i of extent n: g_i [n, n] the last sample, s_i [n, n] the statistics, and
    the preconditioner pvec_i diag(pval_i) pvec_i^T + o_i I; then d, m and pm, shaped like the
    value, and the newest step seen.
    """

    def __init__(self, optimizer: Shampoo, initial: F32) -> None:
        self.value: NDArray[Any] = initial.copy()

        shapes: dict[str, tuple[int, ...]] = {}
        most_kept = optimizer.eigen_head + optimizer.eigen_tail

        for axis, extent in enumerate(initial.shape):
            kept = min(extent, most_kept)
            square = (extent, extent)

            shapes[f"g_{axis}"] = square
            shapes[f"s_{axis}"] = square
            shapes[f"pvec_{axis}"] = (extent, kept)
            shapes[f"pval_{axis}"] = (kept,)
            shapes[f"o_{axis}"] = ()

        for name in ("d", "m", "pm"):
            shapes[name] = initial.shape

        fields: dict[str, NDArray[Any]] = {}
        for name, shape in shapes.items():
            fields[name] = np.zeros(shape, np.float32)

        fields["last_step"] = np.full((), -1, np.int64)
        self.fields: Mapping[str, NDArray[Any]] = fields

    def step(self, optimizer: DenseOptimizer, gradient: F32, rate: np.float32, step: int) -> None:
        if not isinstance(optimizer, Shampoo):
            raise InvalidRequest(f"the state is shampoo's, not {optimizer.name}'s")

        is_warm = step > optimizer.warmup
        is_sampled = self._is_due(step, optimizer.tau_2)
        self._observe(optimizer, gradient, is_sampled)

        if is_warm and self._is_due(step, optimizer.tau_1):
            self._refresh(optimizer)

        last_step = self.fields["last_step"]
        last_step[...] = max(step, int(last_step))

        m, pm = self._move_means(optimizer, gradient)
        plain = rate * m
        if not is_warm:
            self.value -= plain
            return

        # After the warm-up, shampoo's direction takes over little by little. Its length is
        # adagrad's.
        warmth = step / optimizer.warmup - 1
        blend = np.float32(min(warmth, 1.0))

        norm_of_pm = np.linalg.norm(pm) + np.float32(1e-10)
        length = np.linalg.norm(m) / norm_of_pm

        self.value -= (1 - blend) * plain + blend * rate * length * pm

    def _move_means(self, optimizer: Shampoo, gradient: F32) -> tuple[NDArray[Any], NDArray[Any]]:
        """The running means of adagrad's steps and of the preconditioned gradients."""
        d = self.fields["d"]
        m = self.fields["m"]
        pm = self.fields["pm"]

        keep = np.float32(optimizer.beta_1)
        rest = np.float32(1 - optimizer.beta_1)

        d += gradient * gradient
        root = np.sqrt(d + np.float32(1e-30))
        step = rest * gradient / root
        m[...] = keep * m + step

        preconditioned = self._preconditioned(gradient)
        pm[...] = keep * pm + rest * preconditioned

        return m, pm

    def _is_due(self, step: int, period: int) -> bool:
        """At multiples of the period, or at the first step beyond one that no push has named."""
        if step % period == 0:
            return True

        last = int(self.fields["last_step"])
        return step // period > last // period

    def _observe(self, optimizer: Shampoo, gradient: F32, is_sampled: bool) -> None:
        """Statistics take the last sample in at every step, also when it is an old one."""
        beta = np.float32(optimizer.beta_2)
        for axis, extent in enumerate(gradient.shape):
            sample = self.fields[f"g_{axis}"]
            statistics = self.fields[f"s_{axis}"]

            if is_sampled:
                first = np.moveaxis(gradient, axis, 0)
                rows = first.reshape(extent, -1)
                sample[...] = rows @ rows.T

            if optimizer.beta_2 < _SUMMED:
                statistics *= beta
                statistics += (1 - beta) * sample
            else:
                statistics += sample

    def _refresh(self, optimizer: Shampoo) -> None:
        for axis in range(self.value.ndim):
            statistics = self.fields[f"s_{axis}"]
            if not np.isfinite(statistics).all():
                # Gradients near the largest float32; the last preconditioner is better than none
                continue

            vectors, values, offset = inverse_root(
                statistics,
                2 * self.value.ndim,
                optimizer.eigen_head,
                optimizer.eigen_tail,
                optimizer.damping_epsilon,
            )

            self.fields[f"pvec_{axis}"][...] = vectors
            self.fields[f"pval_{axis}"][...] = values
            self.fields[f"o_{axis}"][...] = offset

    def _preconditioned(self, gradient: F32) -> F32:
        """The gradient contracted with the preconditioner of each axis.

        Each round moves the first axis to the end.
        """
        result = gradient
        for axis in range(gradient.ndim):
            vectors = self.fields[f"pvec_{axis}"]
            values = self.fields[f"pval_{axis}"]
            offset = self.fields[f"o_{axis}"]

            turned = np.tensordot(result, vectors, axes=(0, 0))
            turned = turned * values
            back = np.tensordot(turned, vectors, axes=(-1, 1))

            moved = np.moveaxis(result, 0, -1)
            result = back + moved * offset

        return result.astype(np.float32, copy=False)


def inverse_root(
    matrix: F32, power: int, head: int, tail: int, damping: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], np.float64]:
    """matrix^(-1/power) as (vectors, values, offset): vectors diag(values) vectors^T + offset I.

    Of the n eigenvalues those below `damping` count as it; the `head` smallest above it and the
    `tail` largest are kept, and the offset stands for the ones between.
    """
    eigenvalues, vectors = np.linalg.eigh(matrix.astype(np.float64))
    size = eigenvalues.size
    damped = np.maximum(eigenvalues, damping)
    powers = damped ** (-1.0 / power)

    if head + tail > size:
        first = 0
        head = size
        tail = 0
    else:
        smallest = int(np.argmax(eigenvalues > damping))
        first = min(smallest, size - head - tail)

    end_of_head = first + head
    start_of_tail = size - tail
    kept = np.r_[first:end_of_head, start_of_tail:size]

    offset = np.float64(0)
    between = powers[end_of_head:start_of_tail]
    if between.size:
        offset = np.float64(between.mean())

    return vectors[:, kept], powers[kept] - offset, offset

"""Gradient clipping, and the steps between a model's gradients and what is pushed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.errors import InvalidRequest, ShapeMismatch
from megalith.schema.checks import require

ArrayByName = dict[str, NDArray[np.float32]]


def global_norm(arrays: list[Any]) -> float:
    """The root of the sum of all squares.

    Summed in float64, so that large float32 gradients do not overflow it.
    """
    total = 0.0
    for array in arrays:
        values = np.asarray(array)
        total += float(np.square(values, dtype=np.float64).sum())

    return math.sqrt(total)


def clip_by_global_norm(
    arrays: list[Any], clip_norm: float, use_norm: float | None = None
) -> tuple[list[NDArray[np.float32]], float]:
    """Scale arrays so that their common norm is at most `clip_norm`.

    Returns the arrays, and the norm that they had. The inputs are not changed. If you know the norm
    already, give it as `use_norm`. If the norm is infinite, everything is multiplied by 0: finite
    elements become 0, and infinite ones NaN. If it is NaN, the arrays are returned as they are. A
    server refuses NaN in either case.
    """
    if not isinstance(arrays, list):
        raise TypeError(f"the gradients should be a list, not {type(arrays).__name__}")

    require(clip_norm >= 0, f"clip_norm {clip_norm!r} must be 0 or more")

    norm = global_norm(arrays) if use_norm is None else float(use_norm)
    values = [np.asarray(array, np.float32) for array in arrays]
    if not norm > clip_norm:  # NaN is not
        return values, norm

    scale = np.float32(clip_norm / norm)
    with np.errstate(invalid="ignore"):
        scaled = [value * scale for value in values]

    return scaled, norm


class Clip(StrEnum):
    """Which norm gradients are held to."""

    BY_GLOBAL_NORM = "by_global_norm"  # one norm over dense and sparse gradients together
    # A norm of each; sparse only if it has a limit of its own.
    BY_DENSE_AND_SPARSE = "by_dense_and_sparse"
    BY_NORM = "by_norm"  # each array by itself
    BY_VALUE = "by_value"  # each element by itself
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientRecipe:
    """What happens to gradients before they are pushed.

    First the mean over the batch, then clipping, then weight decay. Sparse gradients are those of
    rows as they were looked up, one per occurrence of an id, before equal ids are summed.
    """

    clip: Clip = Clip.BY_GLOBAL_NORM
    clip_norm: float | None = None  # None: nothing is clipped
    sparse_clip_norm: float | None = None  # for sparse gradients, in place of clip_norm
    # The sparse limit grows from 0 at step 0 to its value at this step; 0: at once.
    sparse_norm_warmup_steps: int = 0
    # Dense gradients are sums over the batch: divide them by its size.
    dense_reduce_mean: bool = False
    dense_weight_decay: float = 0.0  # added to dense gradients, times the variable, after clipping

    def __post_init__(self) -> None:
        for name in ("clip_norm", "sparse_clip_norm"):
            value = getattr(self, name)
            require(
                value is None or value >= 0, f"gradient recipe: {name} {value!r} must be 0 or more"
            )

        require(
            self.sparse_norm_warmup_steps >= 0,
            "gradient recipe: sparse_norm_warmup_steps is negative",
        )

        require(
            0 <= self.dense_weight_decay < math.inf,
            f"gradient recipe: dense_weight_decay {self.dense_weight_decay!r} must be 0 or more",
        )

    def prepare(
        self,
        dense: Mapping[str, ArrayLike],
        sparse: Mapping[str, ArrayLike],
        *,
        values: Mapping[str, ArrayLike] | None = None,
        batch_size: int = 0,
        step: int = 0,
    ) -> tuple[ArrayByName, ArrayByName]:
        """Return the gradients of variables by name, and of rows by table, ready to be pushed.

        The arguments are not changed. Weight decay needs `values`, the variables that the gradients
        belong to. The mean needs `batch_size`, and the warm-up `step`.
        """
        prepared = {name: np.asarray(gradient, np.float32) for name, gradient in dense.items()}
        rows = {name: np.asarray(gradient, np.float32) for name, gradient in sparse.items()}

        if self.dense_reduce_mean:
            if batch_size < 1:
                raise InvalidRequest(f"dense_reduce_mean needs the batch size, got {batch_size}")

            size = np.float32(batch_size)
            prepared = {name: gradient / size for name, gradient in prepared.items()}

        prepared, rows = self._clipped(prepared, rows, step)

        if self.dense_weight_decay:
            variables = values or {}
            for name, gradient in prepared.items():
                prepared[name] = self._decayed(name, gradient, variables)

        return prepared, rows

    def _clipped(
        self, dense: ArrayByName, sparse: ArrayByName, step: int
    ) -> tuple[ArrayByName, ArrayByName]:
        if self.clip is Clip.NONE or self.clip_norm is None:
            return dense, sparse

        limit = self.clip_norm
        own = self.sparse_clip_norm if self.sparse_clip_norm is not None else limit
        sparse_limit = self._warming(own, step)

        match self.clip:
            case Clip.BY_GLOBAL_NORM:
                norm = global_norm([*dense.values(), *sparse.values()])
                return _scaled(dense, limit, norm), _scaled(sparse, sparse_limit, norm)

            case Clip.BY_DENSE_AND_SPARSE:
                if self.sparse_clip_norm is None:
                    return _scaled(dense, limit), sparse
                return _scaled(dense, limit), _scaled(sparse, sparse_limit)

            case Clip.BY_NORM:
                return _each(dense, limit), _each(sparse, sparse_limit)

            case Clip.BY_VALUE:
                return _cut(dense, limit), _cut(sparse, sparse_limit)

    def _warming(self, limit: float, step: int) -> float:
        if not self.sparse_norm_warmup_steps:
            return limit

        reached = min(step / self.sparse_norm_warmup_steps, 1.0)
        return limit * reached

    def _decayed(
        self, name: str, gradient: NDArray[np.float32], values: Mapping[str, ArrayLike]
    ) -> NDArray[np.float32]:
        if name not in values:
            raise InvalidRequest(f"dense_weight_decay needs the value of variable {name}")

        value = np.asarray(values[name], np.float32)
        if value.shape != gradient.shape:
            raise ShapeMismatch(
                f"variable {name} is {list(value.shape)}, its gradient {list(gradient.shape)}"
            )

        return gradient + np.float32(self.dense_weight_decay) * value


def _scaled(arrays: ArrayByName, limit: float, norm: float | None = None) -> ArrayByName:
    values = list(arrays.values())
    scaled, _ = clip_by_global_norm(values, limit, norm)

    return dict(zip(arrays, scaled, strict=True))


def _each(arrays: ArrayByName, limit: float) -> ArrayByName:
    clipped: ArrayByName = {}
    for name, array in arrays.items():
        (value,), _ = clip_by_global_norm([array], limit)
        clipped[name] = value

    return clipped


def _cut(arrays: ArrayByName, limit: float) -> ArrayByName:
    low = np.float32(-limit)
    high = np.float32(limit)
    cut = {}
    for name, array in arrays.items():
        cut[name] = np.clip(array, low, high)

    return cut

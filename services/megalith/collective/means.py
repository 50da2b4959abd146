"""The mean of the gradients that ranks have found for variables."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.collective.engine import F32
from megalith.collective.ranks import Ranks
from megalith.errors import ShapeMismatch, UnknownVariable


def mean_gradients(
    ranks: Ranks, gradients: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, F32]:
    """By variable, the mean over the ranks that have a gradient of it; the same on all ranks.

    `shapes` are those of all variables, in the same order on all ranks. UnknownVariable or
    ShapeMismatch for a gradient of none of them, before another rank has any of it.
    """
    for name, gradient in gradients.items():
        _check(name, gradient, shapes)

    has_one = np.array([name in gradients for name in shapes], np.int64)
    num_having = ranks.gather(has_one).sum(0)
    counts = dict(zip(shapes, num_having.tolist(), strict=True))
    names = [name for name, count in counts.items() if count]
    if not names:
        return {}

    parts = []
    for name in names:
        gradient = gradients.get(name, np.zeros(shapes[name], np.float32))
        parts.append(np.asarray(gradient, np.float32).reshape(-1))

    total = ranks.total(np.concatenate(parts))
    bounds = np.cumsum([0, *(part.size for part in parts)]).tolist()

    means = {}
    for name, (begin, end) in zip(names, itertools.pairwise(bounds), strict=True):
        mean = total[begin:end] / np.float32(counts[name])
        means[name] = mean.reshape(shapes[name])

    return means


def _check(name: str, gradient: NDArray[Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    if name not in shapes:
        raise UnknownVariable(f"no variable {name!r}; there are {sorted(shapes)}")

    if gradient.shape != shapes[name]:
        raise ShapeMismatch(
            f"variable {name}: the gradient is {list(gradient.shape)}, expected "
            f"{list(shapes[name])}"
        )

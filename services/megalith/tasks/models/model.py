"""What a model is: rows and variables in, logits out, gradients back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from megalith.client import Adagrad, Adam, Layout, RandomUniform, Slice, VariableConfig, Zeros

F32 = NDArray[np.float32]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model is made for.

    `row_rate` and `rate` are the learning rates of rows and of dense variables. That of rows is
    reached after `row_warmup_steps`.
    """

    features: tuple[str, ...]
    num_dense: int
    dim: int = 8
    hidden: tuple[int, ...] = (256, 128)
    row_rate: float = 0.05
    row_warmup_steps: int = 0
    rate: float = 0.001
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Inputs:
    """A batch as a model sees it.

    `layouts` has the model's own layouts of the rows, by name. `dense` is [examples, num_dense].
    """

    layouts: Mapping[str, F32]
    dense: F32


@dataclass(frozen=True, slots=True)
class ModelGradients:
    """The gradients of what `forward` was given, by the names of layouts and of variables."""

    layouts: dict[str, F32]
    variables: dict[str, F32]


# The gradient of the logits, [examples], to that of all that they were made of.
Backward = Callable[[F32], ModelGradients]


class Model(Protocol):
    """A model of one shape. It keeps nothing of a batch."""

    @property
    def slices(self) -> tuple[Slice, ...]: ...

    @property
    def layouts(self) -> dict[str, Layout]: ...

    @property
    def variables(self) -> tuple[VariableConfig, ...]: ...

    def forward(self, inputs: Inputs, variables: Arrays) -> tuple[F32, Backward]:
        """Logits, one for each example, and the way back."""


def bias_slice(shape: ModelShape) -> Slice:
    """One number for each id: what it adds to the logit by itself."""
    return Slice("bias", 1, Zeros(), row_optimizer(shape))


def vector_slice(shape: ModelShape) -> Slice:
    """A vector for each id, which meets those of the other features.

    It starts at small random numbers: the gradient of a product of zeros is zero.
    """
    initializer = RandomUniform(-0.05, 0.05)
    return Slice("vec", shape.dim, initializer, row_optimizer(shape))


def row_optimizer(shape: ModelShape) -> Adagrad:
    return Adagrad(
        shape.row_rate,
        initial_accumulator_value=0.1,
        warmup_steps=shape.row_warmup_steps,
    )


def layer_optimizer(rate: float) -> Adam:
    """For variables: with the epsilon of `Adam`'s own default, layers would hardly move."""
    return Adam(rate, beta2=0.999, epsilon=1e-7)


def readout_variable(width: int, rate: float, rng: np.random.Generator) -> VariableConfig:
    """Weights of the last layer's outputs, whose weighted sum is a part of the logit."""
    spread = 1.0 / np.sqrt(width)
    drawn = rng.normal(0.0, spread, width)
    weights = drawn.astype(np.float32)
    return VariableConfig("readout", weights, layer_optimizer(rate))


def stacked(shape: ModelShape, slice_name: str) -> Layout:
    """A slice of all features: [examples, features, width]."""
    parts = [f"{feature}.{slice_name}" for feature in shape.features]
    return Layout.stack(*parts)


def merged(*gradients: ModelGradients) -> ModelGradients:
    """The sum of gradients that parts of a model have found by themselves."""
    layouts: dict[str, F32] = {}
    variables: dict[str, F32] = {}
    for each in gradients:
        _add(layouts, each.layouts)
        _add(variables, each.variables)

    return ModelGradients(layouts, variables)


def _add(sums: dict[str, F32], more: dict[str, F32]) -> None:
    for name, gradient in more.items():
        if name in sums:
            sums[name] = sums[name] + gradient
        else:
            sums[name] = gradient

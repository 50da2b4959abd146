"""DCN, version 2: a cross network and a multilayer perceptron over the same inputs.

x_0 = all vectors of the example, and its dense columns
x_1 = x_0 * (x_0 W_0 + b_0) + x_0, and so on: layer n multiplies up to n + 2 inputs with each other
logit = linear + readout . [x_last, mlp(x_0)]
"""

import numpy as np

from megalith.client import VariableConfig
from megalith.tasks.models.logistic import Logistic
from megalith.tasks.models.mlp import Mlp, MlpBackward
from megalith.tasks.models.model import (
    F32,
    Arrays,
    Backward,
    Inputs,
    ModelGradients,
    ModelShape,
    layer_optimizer,
    merged,
    readout_variable,
    stacked,
    vector_slice,
)

_NUM_CROSSES = 2


class CrossNetwork:
    """Layers that multiply their input with the first one, column by column."""

    def __init__(
        self, num_inputs: int, num_layers: int, rate: float, rng: np.random.Generator
    ) -> None:
        variables = []
        self._names = []
        for number in range(num_layers):
            spread = 1.0 / np.sqrt(num_inputs)
            drawn = rng.normal(0.0, spread, (num_inputs, num_inputs))
            weights = drawn.astype(np.float32)

            biases = np.zeros(num_inputs, np.float32)

            weights_name = f"cross/{number}/weights"
            biases_name = f"cross/{number}/biases"
            self._names.append((weights_name, biases_name))

            optimizer = layer_optimizer(rate)
            variables.append(VariableConfig(weights_name, weights, optimizer))
            variables.append(VariableConfig(biases_name, biases, optimizer))

        self.variables = tuple(variables)

    def forward(self, first: F32, variables: Arrays) -> tuple[F32, MlpBackward]:
        inputs = []
        factors = []
        values = first
        for weights, biases in self._names:
            factor = values @ variables[weights]
            factor += variables[biases]

            inputs.append(values)
            factors.append(factor)
            values = first * factor + values

        def backward(error: F32) -> tuple[F32, dict[str, F32]]:
            gradients = {}
            by_first = np.zeros_like(first)
            layers = list(zip(self._names, inputs, factors, strict=True))

            for (weights, biases), layer_input, factor in reversed(layers):
                by_first += error * factor
                by_factor = error * first

                gradients[weights] = layer_input.T @ by_factor
                gradients[biases] = by_factor.sum(axis=0)

                through_weights = by_factor @ variables[weights].T
                error = through_weights + error

            return error + by_first, gradients

        return values, backward


class Dcn:
    """Linear part, cross network and perceptron, with one readout over the last two."""

    def __init__(self, shape: ModelShape) -> None:
        rng = np.random.default_rng(shape.seed)
        self._linear = Logistic(shape)

        num_vector_columns = len(shape.features) * shape.dim
        num_inputs = num_vector_columns + shape.num_dense
        self._cross = CrossNetwork(num_inputs, _NUM_CROSSES, shape.rate, rng)
        self._mlp = Mlp(num_inputs, shape.hidden, shape.rate, rng)

        width = num_inputs + self._mlp.num_outputs
        readout = readout_variable(width, shape.rate, rng)

        vectors = {"vec": stacked(shape, "vec")}
        self.slices = (*self._linear.slices, vector_slice(shape))
        self.layouts = self._linear.layouts | vectors

        self.variables = (
            *self._linear.variables,
            *self._cross.variables,
            *self._mlp.variables,
            readout,
        )

    def forward(self, inputs: Inputs, variables: Arrays) -> tuple[F32, Backward]:
        linear, linear_backward = self._linear.forward(inputs, variables)

        vectors = inputs.layouts["vec"]
        columns = flat(vectors, inputs.dense)
        crossed, cross_backward = self._cross.forward(columns, variables)
        hidden, mlp_backward = self._mlp.forward(columns, variables)

        both = np.concatenate([crossed, hidden], axis=1)
        readout = variables["readout"]

        def backward(error: F32) -> ModelGradients:
            by_output = np.outer(error, readout)
            width = crossed.shape[1]

            by_crossed, cross_variables = cross_backward(by_output[:, :width])
            by_hidden, mlp_variables = mlp_backward(by_output[:, width:])

            by_column = by_crossed + by_hidden
            num_vector_columns = vectors[0].size
            by_vector_column = by_column[:, :num_vector_columns]
            by_vector = by_vector_column.reshape(vectors.shape)

            by_variable = cross_variables | mlp_variables
            by_variable["readout"] = error @ both

            gradients = ModelGradients({"vec": by_vector}, by_variable)
            return merged(linear_backward(error), gradients)

        return linear + both @ readout, backward


def flat(vectors: F32, dense: F32) -> F32:
    """The vectors of an example one after the other, then its dense columns."""
    side_by_side = vectors.reshape(len(vectors), -1)
    if not dense.size:
        return side_by_side

    return np.concatenate([side_by_side, dense], axis=1)

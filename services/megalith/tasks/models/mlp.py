"""A multilayer perceptron with ReLU, on variables of the cluster: forward and back."""

from collections.abc import Callable, Sequence

import numpy as np

from megalith.client import VariableConfig
from megalith.tasks.models.model import F32, Arrays, layer_optimizer

# The gradient of the output to that of the input, and of the variables by name.
MlpBackward = Callable[[F32], tuple[F32, dict[str, F32]]]


class Mlp:
    """Layers of the given widths, ReLU between them and after the last one.

    Layer 0 has the variables `mlp/0/weights`, [inputs, width], and `mlp/0/biases`.
    """

    def __init__(
        self, num_inputs: int, widths: Sequence[int], rate: float, rng: np.random.Generator
    ) -> None:
        variables = []
        self._names = []
        for number, width in enumerate(widths):
            # He: keeps the spread of activations through ReLU.
            spread = np.sqrt(2.0 / num_inputs)
            drawn = rng.normal(0.0, spread, (num_inputs, width))
            weights = drawn.astype(np.float32)
            biases = np.zeros(width, np.float32)

            names = (f"mlp/{number}/weights", f"mlp/{number}/biases")
            variables.append(VariableConfig(names[0], weights, layer_optimizer(rate)))
            variables.append(VariableConfig(names[1], biases, layer_optimizer(rate)))
            self._names.append(names)
            num_inputs = width

        self.variables = tuple(variables)
        self.num_outputs = num_inputs

    def forward(self, values: F32, variables: Arrays) -> tuple[F32, MlpBackward]:
        """[examples, outputs], and the way back."""
        inputs = []
        for weights, biases in self._names:
            inputs.append(values)
            values = values @ variables[weights]
            values += variables[biases]
            np.maximum(values, 0.0, out=values)

        outputs = [*inputs[1:], values]

        def backward(error: F32) -> tuple[F32, dict[str, F32]]:
            gradients = {}
            layers = list(zip(self._names, inputs, outputs, strict=True))
            for (weights, biases), layer_input, output in reversed(layers):
                error = error * (output > 0.0)  # ReLU lets through what it let through forward
                gradients[weights] = layer_input.T @ error
                gradients[biases] = error.sum(axis=0)
                error = error @ variables[weights].T

            return error, gradients

        return values, backward

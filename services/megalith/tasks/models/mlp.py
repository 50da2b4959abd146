"""A multilayer perceptron with ReLU, on variables of the cluster: forward and back."""

from collections.abc import Callable, Sequence

import numpy as np

from megalith.client import VariableConfig
from megalith.tasks.models import layer_kernels
from megalith.tasks.models.model import F32, Arrays, layer_optimizer

# The gradient of the output to that of the input, and of the variables by name.
MlpBackward = Callable[[F32], tuple[F32, dict[str, F32]]]


class Mlp:
    """Layers of the given widths, ReLU between them and after the last one.

    Layer 0 has the variables `mlp/0/weights`, [inputs, width], and `mlp/0/biases`. A row of the
    weights belongs to a column of the input: first to those of `values`, then to `dense`.
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

            weights_name = f"mlp/{number}/weights"
            biases_name = f"mlp/{number}/biases"
            self._names.append((weights_name, biases_name))

            optimizer = layer_optimizer(rate)
            variables.append(VariableConfig(weights_name, weights, optimizer))
            variables.append(VariableConfig(biases_name, biases, optimizer))
            num_inputs = width

        self.variables = tuple(variables)
        self.num_outputs = num_inputs

    def forward(
        self, values: F32, variables: Arrays, dense: F32 | None = None
    ) -> tuple[F32, MlpBackward]:
        """[examples, outputs], and the way back, which gives the gradient of `values`.

        `dense` are further columns of the input. Nobody needs their gradient.
        """
        inputs = []
        more = dense
        for weights, biases in self._names:
            inputs.append(values)
            values = _product(values, more, variables[weights])
            layer_kernels.activate(values, variables[biases])
            more = None

        outputs = [*inputs[1:], values]

        def backward(error: F32) -> tuple[F32, dict[str, F32]]:
            gradients = {}
            for layer in reversed(range(len(inputs))):
                weights, biases = self._names[layer]

                by_product = np.empty_like(outputs[layer])
                by_bias = np.zeros_like(variables[biases])
                layer_kernels.deactivate(error, outputs[layer], by_bias, by_product)

                values = inputs[layer]
                more = dense if layer == 0 else None
                gradients[weights] = _by_weights(values, more, by_product)
                gradients[biases] = by_bias

                num_values = values.shape[1]
                error = by_product @ variables[weights][:num_values].T

            return error, gradients

        return values, backward


def _product(values: F32, more: F32 | None, weights: F32) -> F32:
    """[values, more] @ weights, without an array of both."""
    if more is None or not more.size:
        return values @ weights

    num_values = values.shape[1]
    product = values @ weights[:num_values]
    product += more @ weights[num_values:]
    return product


def _by_weights(values: F32, more: F32 | None, error: F32) -> F32:
    """[values, more].T @ error."""
    if more is None or not more.size:
        return values.T @ error

    num_values = values.shape[1]
    num_inputs = num_values + more.shape[1]
    num_outputs = error.shape[1]

    gradient = np.empty((num_inputs, num_outputs), error.dtype)
    np.matmul(values.T, error, out=gradient[:num_values])
    np.matmul(more.T, error, out=gradient[num_values:])
    return gradient

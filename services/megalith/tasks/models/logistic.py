"""Logistic regression: every id has a weight, every dense column has one, and there is a bias.

logit = bias + sum of the features' biases + dense . weights
"""

import numpy as np

from megalith.client import VariableConfig
from megalith.tasks.models.model import (
    F32,
    Arrays,
    Backward,
    Inputs,
    ModelGradients,
    ModelShape,
    bias_slice,
    layer_optimizer,
    stacked,
)


class Logistic:
    """The linear model. It is also the first-order part of the others."""

    def __init__(self, shape: ModelShape) -> None:
        self.slices = (bias_slice(shape),)
        self.layouts = {"bias": stacked(shape, "bias")}

        # The one number that all examples share may move faster than a layer.
        optimizer = layer_optimizer(3 * shape.rate)
        variables = [VariableConfig("bias", np.zeros(1, np.float32), optimizer)]
        if shape.num_dense:
            weights = np.zeros(shape.num_dense, np.float32)
            variables.append(VariableConfig("dense_weights", weights, optimizer))

        self.variables = tuple(variables)

    def forward(self, inputs: Inputs, variables: Arrays) -> tuple[F32, Backward]:
        biases = inputs.layouts["bias"]
        logits = biases.sum(axis=(1, 2)) + variables["bias"]
        if inputs.dense.size:
            logits += inputs.dense @ variables["dense_weights"]

        def backward(error: F32) -> ModelGradients:
            by_feature = np.broadcast_to(error[:, np.newaxis, np.newaxis], biases.shape)
            gradients = {"bias": error.sum(keepdims=True)}

            if inputs.dense.size:
                gradients["dense_weights"] = error @ inputs.dense

            return ModelGradients({"bias": by_feature}, gradients)

        return logits, backward

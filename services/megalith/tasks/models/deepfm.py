"""DeepFM: a factorization machine and a multilayer perceptron over the same vectors.

logit = fm + readout . mlp(all vectors of the example, and its dense columns)

The machine finds which pairs of ids go together; the perceptron finds what is not a product of two.
"""

import numpy as np

from megalith.client import VariableConfig
from megalith.tasks.models.fm import Fm
from megalith.tasks.models.mlp import Mlp
from megalith.tasks.models.model import (
    F32,
    Arrays,
    Backward,
    Inputs,
    ModelGradients,
    ModelShape,
    layer_optimizer,
    merged,
)


class DeepFm:
    """The machine, and beside it the perceptron with a linear readout."""

    def __init__(self, shape: ModelShape) -> None:
        rng = np.random.default_rng(shape.seed)
        self._fm = Fm(shape)
        num_inputs = len(shape.features) * shape.dim + shape.num_dense
        self._mlp = Mlp(num_inputs, shape.hidden, shape.rate, rng)

        width = self._mlp.num_outputs
        spread = 1.0 / np.sqrt(width)
        readout = rng.normal(0.0, spread, width).astype(np.float32)

        self.slices = self._fm.slices
        self.layouts = self._fm.layouts
        self.variables = (
            *self._fm.variables,
            *self._mlp.variables,
            VariableConfig("readout", readout, layer_optimizer(shape.rate)),
        )

    def forward(self, inputs: Inputs, variables: Arrays) -> tuple[F32, Backward]:
        fm, fm_backward = self._fm.forward(inputs, variables)

        vectors = inputs.layouts["vec"]
        columns = flat(vectors, inputs.dense)
        hidden, mlp_backward = self._mlp.forward(columns, variables)
        readout = variables["readout"]
        deep = hidden @ readout

        def backward(error: F32) -> ModelGradients:
            by_hidden = np.outer(error, readout)
            by_column, by_variable = mlp_backward(by_hidden)
            by_variable["readout"] = error @ hidden

            num_vector_columns = vectors[0].size
            by_vector = by_column[:, :num_vector_columns].reshape(vectors.shape)

            deep_gradients = ModelGradients({"vec": by_vector}, by_variable)
            return merged(fm_backward(error), deep_gradients)

        return fm + deep, backward


def flat(vectors: F32, dense: F32) -> F32:
    """The vectors of an example one after the other, then its dense columns."""
    side_by_side = vectors.reshape(len(vectors), -1)
    if not dense.size:
        return side_by_side

    return np.concatenate([side_by_side, dense], axis=1)

"""DeepFM: a factorization machine and a multilayer perceptron over the same vectors.

logit = fm + readout . mlp(all vectors of the example, and its dense columns)

The machine finds which pairs of ids go together; the perceptron finds what is not a product of two.
"""

import numpy as np

from megalith.tasks.models.fm import pair_products
from megalith.tasks.models.logistic import Logistic
from megalith.tasks.models.mlp import Mlp
from megalith.tasks.models.model import (
    F32,
    Arrays,
    Backward,
    Inputs,
    ModelGradients,
    ModelShape,
    merged,
    readout_variable,
    stacked,
    vector_slice,
)


class DeepFm:
    """The machine, and beside it the perceptron with a linear readout."""

    def __init__(self, shape: ModelShape) -> None:
        rng = np.random.default_rng(shape.seed)
        self._linear = Logistic(shape)

        num_vector_columns = len(shape.features) * shape.dim
        num_inputs = num_vector_columns + shape.num_dense
        self._mlp = Mlp(num_inputs, shape.hidden, shape.rate, rng)
        readout = readout_variable(self._mlp.num_outputs, shape.rate, rng)

        vectors = {"vec": stacked(shape, "vec")}
        self.slices = (*self._linear.slices, vector_slice(shape))
        self.layouts = self._linear.layouts | vectors

        self.variables = (
            *self._linear.variables,
            *self._mlp.variables,
            readout,
        )

    def forward(self, inputs: Inputs, variables: Arrays) -> tuple[F32, Backward]:
        vectors = inputs.layouts["vec"]
        linear, linear_backward = self._linear.forward(inputs, variables)
        pairs, add_partners = pair_products(vectors)

        side_by_side = vectors.reshape(len(vectors), -1)
        hidden, mlp_backward = self._mlp.forward(side_by_side, variables, inputs.dense)
        readout = variables["readout"]

        def backward(error: F32) -> ModelGradients:
            by_hidden = np.outer(error, readout)
            by_column, by_variable = mlp_backward(by_hidden)
            by_variable["readout"] = error @ hidden

            by_vector = by_column.reshape(vectors.shape)
            add_partners(error, by_vector)

            gradients = ModelGradients({"vec": by_vector}, by_variable)
            return merged(linear_backward(error), gradients)

        return linear + pairs + hidden @ readout, backward

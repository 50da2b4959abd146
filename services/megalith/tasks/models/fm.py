"""Factorization machine: the linear model, and one product for each pair of features.

logit = linear + sum over pairs of features of vec_i . vec_j

The sum over pairs is ((sum of vectors)^2 - sum of squares) / 2, which takes one pass.
"""

from megalith.tasks.models.logistic import Logistic
from megalith.tasks.models.model import (
    F32,
    Arrays,
    Backward,
    Inputs,
    ModelGradients,
    ModelShape,
    merged,
    stacked,
    vector_slice,
)


class Fm:
    """Linear part and pairwise products."""

    def __init__(self, shape: ModelShape) -> None:
        self._linear = Logistic(shape)
        self.slices = (*self._linear.slices, vector_slice(shape))
        self.layouts = self._linear.layouts | {"vec": stacked(shape, "vec")}
        self.variables = self._linear.variables

    def forward(self, inputs: Inputs, variables: Arrays) -> tuple[F32, Backward]:
        linear, linear_backward = self._linear.forward(inputs, variables)
        pairs, pairs_backward = pair_products(inputs.layouts["vec"])

        def backward(error: F32) -> ModelGradients:
            return merged(linear_backward(error), pairs_backward(error))

        return linear + pairs, backward


def pair_products(vectors: F32) -> tuple[F32, Backward]:
    """The sum of the products of all pairs of vectors of each example, [examples]."""
    total = vectors.sum(axis=1)
    square_of_sum = (total * total).sum(axis=1)
    sum_of_squares = (vectors * vectors).sum(axis=(1, 2))

    def backward(error: F32) -> ModelGradients:
        # A vector's partner is the sum of all the others.
        partners = total[:, None, :] - vectors
        partners *= error[:, None, None]
        return ModelGradients({"vec": partners}, {})

    return (square_of_sum - sum_of_squares) / 2, backward

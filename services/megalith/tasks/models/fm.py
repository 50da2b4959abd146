"""Factorization machine: the linear model, and one product for each pair of features.

logit = linear + sum over pairs of features of vec_i . vec_j

The sum over pairs is ((sum of vectors)^2 - sum of squares) / 2, which takes one pass.
"""

from collections.abc import Callable

import numpy as np

from megalith.tasks.models import pair_kernels
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

# Adds the gradient of the vectors to an array, given that of the sums.
AddGradient = Callable[[F32, F32], None]


class Fm:
    """Linear part and pairwise products."""

    def __init__(self, shape: ModelShape) -> None:
        self._linear = Logistic(shape)
        self.variables = self._linear.variables

        vectors = {"vec": stacked(shape, "vec")}
        self.slices = (*self._linear.slices, vector_slice(shape))
        self.layouts = self._linear.layouts | vectors

    def forward(self, inputs: Inputs, variables: Arrays) -> tuple[F32, Backward]:
        vectors = inputs.layouts["vec"]
        linear, linear_backward = self._linear.forward(inputs, variables)
        pairs, add_partners = pair_products(vectors)

        def backward(error: F32) -> ModelGradients:
            by_vector = np.zeros_like(vectors)
            add_partners(error, by_vector)

            gradients = ModelGradients({"vec": by_vector}, {})
            return merged(linear_backward(error), gradients)

        return linear + pairs, backward


def pair_products(vectors: F32) -> tuple[F32, AddGradient]:
    """The sum of the products of all pairs of vectors of each example, [examples]."""
    vectors = np.ascontiguousarray(vectors)
    num_examples, _, dim = vectors.shape
    totals = np.empty((num_examples, dim), vectors.dtype)
    sums = np.empty(num_examples, vectors.dtype)
    pair_kernels.pair_sums(vectors, totals, sums)

    def add_partners(error: F32, by_vector: F32) -> None:
        pair_kernels.add_partners(vectors, totals, error, by_vector)

    return sums, add_partners

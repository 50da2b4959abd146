"""A step of a model on rows: against torch over the whole way, and in any number of threads."""

import numpy as np
import pytest
import torch

from megalith.client import Feature, FeatureLayouts, Mean, Ragged, Sum
from megalith.tasks.models import MODELS, layer_kernels, pair_kernels
from megalith.tasks.models.model import ModelShape
from megalith.tasks.models.parts import Parts
from megalith.tasks.models.step import ModelStep

SHAPE = ModelShape(features=("user", "item", "history"), num_dense=2, dim=4, hidden=(6, 5))
EXAMPLES = 11


def arrays(name, threads=1, seed=3):
    """A step, and a batch whose list `history` shares the rows of `item`; some lists are empty."""
    model = MODELS[name](SHAPE)
    features = [
        Feature("user", model.slices, combiner=Sum()),
        Feature("item", model.slices, combiner=Sum()),
        Feature("history", model.slices, combiner=Mean(), table="item"),
    ]
    layouts = FeatureLayouts(features, model.layouts)
    rng = np.random.default_rng(seed)
    lists = [rng.integers(9, size=number % 4) for number in range(EXAMPLES)]
    ids = {
        "user": rng.integers(5, size=EXAMPLES),
        "item": rng.integers(9, size=EXAMPLES),
        "history": Ragged.of(lists),
    }
    located = layouts.locate({"user": ids["user"], "item": ids["item"], "history": ids["history"]})
    width = sum(part.dim for part in model.slices)
    rows = {
        table: rng.normal(0, 0.5, (len(each), width)).astype(np.float32)
        for table, each in located.ids.items()
    }
    variables = {
        v.name: rng.normal(0, 0.5, v.initial.shape).astype(np.float32) for v in model.variables
    }
    dense = rng.normal(0, 1, (EXAMPLES, SHAPE.num_dense)).astype(np.float32)
    labels = rng.integers(2, size=EXAMPLES).astype(np.float32)
    step = ModelStep(model, layouts, threads)
    return step, located, rows, variables, dense, labels


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("threads", [2, 3, 50])
def test_threads_compute_what_one_computes(name, threads):
    step, *given = arrays(name)
    expected = step.gradients(*given)
    step, *given = arrays(name, threads)
    found = step.gradients(*given)

    np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-5, atol=1e-6)
    assert found.rows.keys() == expected.rows.keys() == {"user", "item"}
    for table, gradient in expected.rows.items():
        np.testing.assert_allclose(found.rows[table], gradient, rtol=1e-4, atol=1e-6)
    for variable, gradient in expected.variables.items():
        np.testing.assert_allclose(found.variables[variable], gradient, rtol=1e-4, atol=1e-6)

    *lookups, _ = given
    np.testing.assert_allclose(step.predict(*lookups), expected.logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_of_rows_are_those_of_torch_through_lists_and_layouts(threads):
    step, located, rows, variables, dense, labels = arrays("deepfm", threads)
    found = step.gradients(located, rows, variables, dense, labels)

    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in rows.items()}
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in variables.items()}
    pooled = []
    for feature in SHAPE.features:
        uses = located.uses[feature]
        table = leaves[uses.table]
        means = []
        for begin, end in zip(uses.splits[:-1], uses.splits[1:], strict=True):
            own = table[torch.tensor(uses.positions[begin:end].astype(np.int64))]
            means.append(own.mean(0) if end > begin else torch.zeros(table.shape[1]))
        pooled.append(torch.stack(means))

    both = torch.stack(pooled, 1)  # [examples, features, bias and vector]
    biases, vectors = both[..., 0], both[..., 1:]
    columns = torch.tensor(dense)
    logits = biases.sum(1) + weights["bias"] + columns @ weights["dense_weights"]
    for one in range(3):
        for other in range(one):
            logits = logits + (vectors[:, one] * vectors[:, other]).sum(1)
    hidden = torch.cat([vectors.flatten(1), columns], 1)
    for layer in range(2):
        product = hidden @ weights[f"mlp/{layer}/weights"] + weights[f"mlp/{layer}/biases"]
        hidden = torch.relu(product)
    logits = logits + hidden @ weights["readout"]
    criterion = torch.nn.BCEWithLogitsLoss(reduction="sum")
    criterion(logits, torch.tensor(labels)).backward()

    np.testing.assert_allclose(found.logits, logits.detach().numpy(), rtol=1e-5, atol=1e-5)
    for table, leaf in leaves.items():
        np.testing.assert_allclose(found.rows[table], leaf.grad, rtol=1e-4, atol=1e-5)
    for name, weight in weights.items():
        mean = weight.grad.numpy() / EXAMPLES
        np.testing.assert_allclose(found.variables[name], mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_kernels_of_pairs_are_the_naive_sums(kind):
    rng = np.random.default_rng(1)
    for shape in [(0, 3, 4), (1, 1, 1), (5, 7, 3), (64, 26, 16)]:
        vectors = rng.normal(0, 1, shape).astype(kind)
        totals = np.empty((shape[0], shape[2]), kind)
        sums = np.empty(shape[0], kind)
        pair_kernels.pair_sums(vectors, totals, sums)
        products = np.einsum("bfc,bgc->bfg", vectors, vectors)
        expected = np.triu(products, 1).sum(axis=(1, 2))
        np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-4)

        error = rng.normal(0, 1, shape[0]).astype(kind)
        out = np.ones(shape, kind)
        pair_kernels.add_partners(vectors, totals, error, out)
        others = vectors.sum(axis=1, keepdims=True) - vectors
        np.testing.assert_allclose(out, 1 + error[:, None, None] * others, rtol=1e-4, atol=1e-5)


def test_parts_cover_all_examples_once_and_raise_after_all_have_ended():
    parts = Parts(3)
    assert parts.compute(10, lambda start, stop: (start, stop)) == [(0, 3), (3, 6), (6, 10)]
    assert parts.compute(2, lambda start, stop: (start, stop)) == [(0, 1), (1, 2)]
    assert parts.compute(0, lambda start, stop: (start, stop)) == [(0, 0)]

    ended = []

    def fails_at_3(start, stop):
        ended.append(start)
        if start == 3:
            raise ValueError("part 3")

    with pytest.raises(ValueError, match="part 3"):
        parts.compute(10, fails_at_3)
    assert sorted(ended) == [0, 3, 6]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_kernels_of_layers_are_the_naive_formulas(kind):
    rng = np.random.default_rng(2)
    for shape in [(0, 3), (1, 1), (5, 7), (64, 256)]:
        products = rng.normal(0, 1, shape).astype(kind)
        biases = rng.normal(0, 1, shape[1]).astype(kind)
        outputs = products.copy()
        layer_kernels.activate(outputs, biases)
        np.testing.assert_array_equal(outputs, np.maximum(products + biases, 0))

        error = rng.normal(0, 1, shape).astype(kind)
        sums = np.zeros(shape[1], kind)
        out = np.empty(shape, kind)
        layer_kernels.deactivate(error, outputs, sums, out)
        expected = error * (outputs > 0)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_allclose(sums, expected.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_what_is_not_finite_in_a_layer_is_not_finite_after_it():
    values = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    layer_kernels.activate(values, np.zeros(3, np.float32))
    np.testing.assert_array_equal(values, [[np.nan, np.inf, 0.0]])

"""Backward passes against finite differences, and whole models against the same ones in torch."""

import numpy as np
import pytest
import torch

from megalith.tasks.models import MODELS
from megalith.tasks.models.model import Inputs, ModelShape

SHAPE = ModelShape(features=("user", "item", "city"), num_dense=2, dim=4, hidden=(6, 5))
EXAMPLES = 7


def arrays(name, seed=3):
    """A model, inputs and variables of float64, so that small differences can be measured."""
    model = MODELS[name](SHAPE)
    rng = np.random.default_rng(seed)
    layouts = {}
    for part in model.slices:
        layouts[part.name] = rng.normal(0, 1, (EXAMPLES, len(SHAPE.features), part.dim))
    dense = rng.normal(0, 1, (EXAMPLES, SHAPE.num_dense))
    variables = {v.name: rng.normal(0, 0.7, v.initial.shape) for v in model.variables}
    return model, Inputs(layouts, dense), variables


def loss_of(logits, labels):
    return float(np.sum(np.logaddexp(0, logits) - labels * logits))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_the_slopes_of_the_loss(name):
    model, inputs, variables = arrays(name)
    labels = np.random.default_rng(4).integers(2, size=EXAMPLES).astype(float)
    logits, backward = model.forward(inputs, variables)
    found = backward(1 / (1 + np.exp(-logits)) - labels)
    assert found.layouts.keys() == inputs.layouts.keys()
    assert found.variables.keys() == variables.keys()

    every = {**inputs.layouts, **{f"variable {n}": v for n, v in variables.items()}}
    gradients = {**found.layouts, **{f"variable {n}": g for n, g in found.variables.items()}}
    step = 1e-6
    for key, values in every.items():
        slopes = np.empty_like(values)
        for place in np.ndindex(values.shape):
            kept = values[place]
            values[place] = kept + step
            above = loss_of(model.forward(inputs, variables)[0], labels)
            values[place] = kept - step
            below = loss_of(model.forward(inputs, variables)[0], labels)
            values[place] = kept
            slopes[place] = (above - below) / (2 * step)
        np.testing.assert_allclose(gradients[key], slopes, atol=1e-6, err_msg=key)


def torch_logits(name, layouts, dense, variables):
    """The formulas of the models once more, in torch."""
    logits = layouts["bias"].sum((1, 2)) + variables["bias"] + dense @ variables["dense_weights"]
    if name == "lr":
        return logits

    vectors = layouts["vec"]
    if name in ("fm", "deepfm"):
        for one in range(vectors.shape[1]):
            for other in range(one):
                logits = logits + (vectors[:, one] * vectors[:, other]).sum(1)
    if name == "fm":
        return logits

    first = torch.cat([vectors.flatten(1), dense], 1)
    hidden = first
    for layer in range(len(SHAPE.hidden)):
        weights, biases = variables[f"mlp/{layer}/weights"], variables[f"mlp/{layer}/biases"]
        hidden = torch.relu(hidden @ weights + biases)
    if name == "deepfm":
        return logits + hidden @ variables["readout"]

    crossed = first
    for layer in range(2):
        weights, biases = variables[f"cross/{layer}/weights"], variables[f"cross/{layer}/biases"]
        crossed = first * (crossed @ weights + biases) + crossed
    return logits + torch.cat([crossed, hidden], 1) @ variables["readout"]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_the_same_model_in_torch_does(name):
    model, inputs, variables = arrays(name, seed=8)
    labels = np.random.default_rng(5).integers(2, size=EXAMPLES).astype(float)
    logits, backward = model.forward(inputs, variables)
    found = backward(1 / (1 + np.exp(-logits)) - labels)

    def leaf(array):
        return torch.tensor(array, requires_grad=True)

    layouts = {key: leaf(value) for key, value in inputs.layouts.items()}
    weights = {key: leaf(value) for key, value in variables.items()}
    expected = torch_logits(name, layouts, torch.tensor(inputs.dense), weights)
    criterion = torch.nn.BCEWithLogitsLoss(reduction="sum")
    criterion(expected, torch.tensor(labels)).backward()

    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=1e-12)
    for key, tensor in layouts.items():
        np.testing.assert_allclose(found.layouts[key], tensor.grad.numpy(), atol=1e-12)
    for key, tensor in weights.items():
        np.testing.assert_allclose(found.variables[key], tensor.grad.numpy(), atol=1e-12)


def test_models_need_no_dense_columns():
    for name in MODELS:
        model = MODELS[name](ModelShape(("user", "item"), 0, dim=3, hidden=(4,)))
        layouts = {s.name: np.ones((5, 2, s.dim), np.float32) for s in model.slices}
        variables = {v.name: v.initial for v in model.variables}
        logits, backward = model.forward(Inputs(layouts, np.empty((5, 0), np.float32)), variables)
        assert logits.shape == (5,)
        assert backward(np.ones(5, np.float32)).variables.keys() == variables.keys()

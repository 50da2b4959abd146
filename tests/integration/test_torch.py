"""The PyTorch front end, against real servers and against torch's own embeddings."""

import dataclasses
import runpy
from pathlib import Path

import numpy as np
import pytest

from megalith.client import (
    Adagrad,
    Feature,
    FirstN,
    Layout,
    Mean,
    Ragged,
    Sgd,
    Slice,
    Zeros,
    errors,
)
from support.servers import Servers
from support.turns_task import TakesTurns, trains_films

torch = pytest.importorskip("torch", reason="needs: pip install torch==2.13.0")

from megalith.torch import ClusterEmbedding  # noqa: E402 (it imports torch)

NUM_IDS, DIM, BATCH = 300, 8, 64
FEATURES = ("first", "second")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """On a busy machine torch's threads wait for each other longer than the small layers here
    take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def draw_batches(count):
    """Ids and labels.

    A label tells whether the effects of the example's first ids add up to more than zero.
    """
    rng = np.random.default_rng(5)
    effects = rng.standard_normal(NUM_IDS)
    for _ in range(count):
        lengths = {name: rng.integers(0, 4, BATCH) for name in FEATURES}
        ids = {
            name: Ragged(
                rng.integers(0, NUM_IDS, length.sum()), np.concatenate([[0], np.cumsum(length)])
            )
            for name, length in lengths.items()
        }
        sums = np.bincount(ids["first"].row_ids, effects[ids["first"].values], BATCH)
        yield ids, torch.from_numpy((sums > 0).astype(np.float32)).reshape(-1, 1)


def make_head():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(2 * DIM, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )


def train(head, embed, optimizers, batches):
    losses, criterion = [], torch.nn.BCEWithLogitsLoss()
    for batch, labels in batches:
        loss = criterion(head(embed(batch)), labels)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


def losses_of_torch():
    """torch.nn.EmbeddingBag from zero, with torch.optim.Adagrad; the head with Adam."""
    head = make_head()
    bags = {
        name: torch.nn.EmbeddingBag(NUM_IDS, DIM, mode=mode)
        for name, mode in zip(FEATURES, ("sum", "mean"), strict=True)
    }
    weights = [bag.weight for bag in bags.values()]
    for weight in weights:
        torch.nn.init.zeros_(weight)

    def embed(ids):
        parts = [
            (torch.from_numpy(ids[name].values), torch.from_numpy(ids[name].row_splits[:-1]))
            for name in FEATURES
        ]
        return torch.cat(
            [bags[name](*part) for name, part in zip(FEATURES, parts, strict=True)], dim=1
        )

    optimizers = [
        torch.optim.Adagrad(weights, lr=0.1, initial_accumulator_value=0.1),
        torch.optim.Adam(head.parameters(), lr=0.01),
    ]
    return train(head, embed, optimizers, draw_batches(50))


@pytest.mark.parametrize("pushes_behind", [0, 2])
def test_losses_equal_those_of_embedding_bag_with_adagrad_for_50_steps(cluster, pushes_behind):
    row = (Slice("v", DIM, Zeros(), Adagrad(0.1, initial_accumulator_value=0.1)),)
    features = cluster.create_features(
        Feature("first", row, table=f"first{pushes_behind}"),
        Feature("second", row, combiner=Mean(), table=f"second{pushes_behind}"),
        layouts={"all": Layout.concat(*FEATURES)},
    )
    embedding, head = ClusterEmbedding(features, pushes_behind=pushes_behind), make_head()
    assert list(embedding.parameters()) == []
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    losses = train(head, lambda ids: embedding(ids)["all"], [optimizer], draw_batches(50))
    np.testing.assert_allclose(losses, losses_of_torch(), rtol=1e-5)
    assert losses[-1] < 0.8 * losses[0]


@pytest.fixture
def sgd(cluster, request):
    """One feature per test, in a table of its own, that shows what was pushed to it."""
    row = (Slice("v", 2, Zeros(), Sgd(1.0)),)
    name = request.node.name
    return ClusterEmbedding(
        cluster.create_features(
            Feature(f"{name}.pooled", row),
            Feature(f"{name}.sequence", row, combiner=FirstN(2)),
            layouts={
                "pooled": Layout.concat(f"{name}.pooled"),
                "both": Layout.none(f"{name}.pooled", f"{name}.sequence"),
            },
        )
    ), lambda **ids: {f"{name}.{key}": value for key, value in ids.items()}


def rows_of(embedding, ids):
    (name,) = ids
    return embedding.features.lookup(ids).parts("both")["sequence" in name].tolist()


def test_backward_pushes_the_gradients_of_the_layouts_used(sgd):
    embedding, named = sgd
    ids = named(pooled=torch.tensor([1, 2, 1]), sequence=torch.tensor([[3, 4], [4, 5], [5, 5]]))
    outputs = embedding(ids)
    assert [tuple(part.shape) for part in outputs["both"]] == [(3, 2), (3, 2, 2)]
    outputs["pooled"].sum().backward()
    assert rows_of(embedding, named(pooled=[1, 2])) == [[-2, -2], [-1, -1]]
    assert rows_of(embedding, named(sequence=[[3]])) == [[[0, 0], [0, 0]]]
    (3 * embedding(ids)["both"][1]).sum().backward()
    assert rows_of(embedding, named(sequence=[[4, 5]])) == [[[-6, -6], [-9, -9]]]
    assert rows_of(embedding, named(pooled=[1, 2])) == [[-2, -2], [-1, -1]]


@pytest.mark.parametrize("is_in_parts", [False, True])
def test_backward_pushes_nothing_of_a_feature_outside_of_the_loss(cluster, is_in_parts):
    """In a table that it shares; a push of zeros would move rows, since they have a momentum."""
    task = TakesTurns()
    table = f"turns{is_in_parts}"
    features = [dataclasses.replace(feature, table=table) for feature in task.features]
    layouts = {"both": Layout.none("user", "film")} if is_in_parts else task.layouts
    embedding = ClusterEmbedding(cluster.create_features(*features, layouts=layouts))

    for number in range(task.num_batches()):
        outputs = embedding(task.batch(number).ids)
        user, film = outputs["both"] if is_in_parts else (outputs["user"], outputs["film"])
        loss = user.sum()
        if trains_films(number):
            loss = loss + film.sum()
        loss.backward()

    found = cluster.pull({table: np.arange(1000)}).rows[table]
    task.check(found, cluster.table_stats()[table].rows)


def test_a_jagged_tensor_is_a_ragged_batch(sgd):
    embedding, named = sgd
    jagged = torch.nested.nested_tensor_from_jagged(
        torch.tensor([1, 1, 2]), torch.tensor([0, 2, 2, 3])
    )
    embedding(named(pooled=jagged))["pooled"].sum().backward()
    assert rows_of(embedding, named(pooled=[1, 2])) == [[-2, -2], [-1, -1]]


def test_nothing_is_pushed_outside_of_training(sgd):
    embedding, named = sgd
    with torch.no_grad():
        assert not embedding(named(pooled=[1]))["pooled"].requires_grad
    embedding.eval()
    assert not embedding(named(pooled=[1]))["pooled"].requires_grad
    embedding.train()
    assert embedding(named(pooled=[1]))["pooled"].requires_grad


def test_prefetch_refuses_what_it_cannot_iterate_over_or_call(sgd):
    embedding = sgd[0]
    with pytest.raises(errors.InvalidRequest, match="batches are int 5"):
        embedding.prefetch(5, lambda _: {})
    with pytest.raises(errors.InvalidRequest, match="is not a function of a batch"):
        embedding.prefetch([1], {"pooled": [1]})


def test_prefetched_batches_train_with_bounded_staleness(sgd):
    embedding, named = sgd
    for number, batch in embedding.prefetch(
        range(10), lambda _: named(pooled=torch.tensor([1])), depth=2
    ):
        output = embedding(batch)["pooled"]
        assert number - 2 <= -output[0, 0].item() <= number
        output.sum().backward()
    assert rows_of(embedding, named(pooled=[1])) == [[-10, -10]]


def test_pushes_behind_add_to_the_staleness_and_are_flushed(sgd):
    embedding, named = ClusterEmbedding(sgd[0].features, pushes_behind=2), sgd[1]
    for number, batch in embedding.prefetch(
        range(20), lambda _: named(pooled=torch.tensor([1])), depth=1
    ):
        output = embedding(batch)["pooled"]
        assert number - 3 <= -output[0, 0].item() <= number
        output.sum().backward()
    embedding.flush()
    assert rows_of(embedding, named(pooled=[1])) == [[-20, -20]]


def test_a_push_behind_that_failed_is_raised_by_the_next_forward_and_by_flush(
    sgd, cluster, monkeypatch
):
    embedding, named = ClusterEmbedding(sgd[0].features, pushes_behind=1), sgd[1]

    class Failed:
        is_answered = False

        def result(self):
            raise errors.Unavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "begin_push", lambda *_, **__: Failed())
        embedding(named(pooled=[1]))["pooled"].sum().backward()
        with pytest.raises(errors.Unavailable, match="away"):
            embedding(named(pooled=[1]))
        embedding(named(pooled=[1]))["pooled"].sum().backward()
        with pytest.raises(errors.Unavailable, match="away"):
            embedding.flush()
    embedding(named(pooled=[1]))["pooled"].sum().backward()
    embedding.flush()
    assert rows_of(embedding, named(pooled=[1])) == [[-1, -1]]
    with pytest.raises(errors.InvalidRequest, match="negative"):
        ClusterEmbedding(embedding.features, pushes_behind=-1)


def test_errors_of_the_cluster_reach_the_training_loop(sgd):
    embedding, named = sgd
    with pytest.raises(errors.UnknownFeature):
        embedding({"x": [1]})
    output = embedding(named(pooled=[1]))["pooled"]
    with pytest.raises(errors.NonFiniteValue):
        (output * float("nan")).sum().backward()
    assert rows_of(embedding, named(pooled=[1])) == [[0, 0]]


def lines_of_code(path):
    """Lines that are neither empty, nor a comment, nor the docstring of the module."""
    source = path.read_text()
    _, docstring, code = source.split('"""', 2)
    assert docstring
    lines = (line.strip() for line in code.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def test_the_deepfm_example_learns_in_under_80_lines_of_code(tmp_path, capsys):
    path = Path(__file__).parents[2] / "examples" / "deepfm.py"
    assert lines_of_code(path) < 80
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        assert runpy.run_path(str(path))["main"](str(tmp_path), steps="60") > 0.62
    assert "best reachable" in capsys.readouterr().out


@pytest.mark.golden("G23")
def test_a_gradient_is_propagated_back_through_the_model_to_the_row(cluster):
    """x = 8, y = 2x and a gradient of 3y: x gets 96."""
    row = (Slice("v", 1, Zeros(), Sgd(1.0)),)
    embedding = ClusterEmbedding(cluster.create_features(Feature("chain", row)))
    cluster.assign_rows({"chain": ([7], [[8.0]])})

    x = embedding({"chain": [7]})["chain"]
    y = 2 * x
    y.backward(3 * y.detach())
    assert x.item() == 8.0
    assert cluster.pull({"chain": [7]}).rows["chain"].tolist() == [[8.0 - 96.0]]

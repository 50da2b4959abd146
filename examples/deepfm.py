"""DeepFM on a running cluster: embeddings on the parameter servers, the dense part in PyTorch.

megalith up --workers 0 &           # in the same folder
python examples/deepfm.py model 300 # its model directory, steps

Clicks are drawn from a known factorization model, so the best reachable AUC is printed beside the
one achieved.
"""

import sys
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import megalith.client as mg
from megalith.torch import ClusterEmbedding

IdsByFeature = dict[str, NDArray[np.int64]]
Floats = NDArray[np.floating]

SIZES = {"user": 1000, "item": 500, "context": 20}
WIDTH = 8  # of a vector

BIAS = mg.Slice("bias", 1, mg.Zeros(), mg.Adagrad(0.1))
VECTOR = mg.Slice("vec", WIDTH, mg.RandomUniform(), mg.Adagrad(0.1))
FEATURES = [mg.Feature(name, (BIAS, VECTOR), slot=slot) for slot, name in enumerate(SIZES, 1)]
LAYOUTS = {  # what the model sees: [examples, features, 1] and [examples, features, WIDTH]
    "bias": mg.Layout.stack("user.bias", "item.bias", "context.bias"),
    "vec": mg.Layout.stack("user.vec", "item.vec", "context.vec"),
}


class DeepFM(nn.Module):
    """First order + pairwise products of vectors + a multilayer perceptron over all of them."""

    def __init__(self, embedding: ClusterEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.deep = nn.Sequential(nn.Linear(WIDTH * len(SIZES), 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: mg.Batch | IdsByFeature) -> Tensor:
        tensors = self.embedding(batch)
        first_order = tensors["bias"].sum(1)

        vectors = tensors["vec"]
        square_of_sum = vectors.sum(1).square()
        sum_of_squares = vectors.square().sum(1)
        pairs = (square_of_sum - sum_of_squares).sum(1, keepdim=True) / 2

        return first_order + pairs + self.deep(vectors.flatten(1))


def draw(steps: int, size: int, seed: int) -> Iterator[tuple[IdsByFeature, Floats, Floats]]:
    """Ids by feature, labels, and the logits that the labels were drawn from."""
    world = np.random.default_rng(7)
    truth = {name: world.normal(0, 0.7, (count, 3)) for name, count in SIZES.items()}
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        ids: IdsByFeature = {}
        rows: list[Floats] = []
        for feature in FEATURES:
            skewed = rng.random(size) ** 2  # low numbers are drawn more often
            raw = (SIZES[feature.name] * skewed).astype(np.int64)
            ids[feature.name] = feature.fids(raw)
            rows.append(truth[feature.name][raw])
        user, item, context = rows
        biases = user[:, 0] + item[:, 0] + context[:, 0]
        logits = biases + (user[:, 1:] * item[:, 1:]).sum(1) - 0.5
        clicks = rng.random(size) < 1 / (1 + np.exp(-logits))
        yield ids, clicks.astype(np.float32), logits


def auc(labels: Floats, scores: Floats) -> float:
    """The probability that a click has a higher score than an example without one."""
    ranks = scores.argsort().argsort() + 1
    clicks = labels.sum()
    above = ranks[labels > 0].sum() - clicks * (clicks + 1) / 2
    return float(above / (clicks * (labels.size - clicks)))


def main(model_dir: str = "model", steps: str = "300") -> float:
    torch.set_num_threads(1)  # the layers are small: more threads wait for each other
    with mg.connect(model_dir=model_dir) as cluster:
        features = cluster.create_features(*FEATURES, layouts=LAYOUTS)
        model = DeepFM(ClusterEmbedding(features))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
        criterion = nn.BCEWithLogitsLoss(reduction="sum")

        stream = model.embedding.prefetch(draw(int(steps), 512, seed=1), lambda drawn: drawn[0])
        for step, ((_, labels, _), batch) in enumerate(stream):
            loss = criterion(model(batch).squeeze(1), torch.from_numpy(labels))
            optimizer.zero_grad()
            loss.backward()  # trains the rows: one push
            optimizer.step()  # trains the rest
            if step % 100 == 0:
                print(f"step {step:5d}  loss {loss.item() / labels.size:.4f}")

        ids, labels, logits = next(draw(1, 20_000, seed=2))
        with torch.no_grad():
            reached = auc(labels, model(ids).squeeze(1).numpy())
        print(f"AUC {reached:.4f}, best reachable {auc(labels, logits):.4f}")
        return reached


if __name__ == "__main__":
    main(*sys.argv[1:])

"""DeepFM on a running cluster: embeddings on the parameter servers, the dense part in PyTorch.

megalith up --workers 0 &           # in the same folder
python examples/deepfm.py model 300 # its model directory, steps

Clicks are drawn from a known factorization model, so the best reachable AUC is printed beside the one achieved.
"""

import sys
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import megalith.client as mg
from megalith.torch import ClusterEmbedding

Floats = NDArray[np.floating]
SIZES = {"user": 1000, "item": 500, "context": 20}
ROW = (
    mg.Slice("bias", 1, mg.Zeros(), mg.Adagrad(0.1)),
    mg.Slice("vec", 8, mg.RandomUniform(), mg.Adagrad(0.1)),
)
FEATURES = [mg.Feature(name, ROW, slot=slot) for slot, name in enumerate(SIZES, start=1)]
BIAS, VECTORS = (mg.Layout.stack(*(f"{name}.{part}" for name in SIZES)) for part in ("bias", "vec"))


class DeepFM(nn.Module):
    """First order + pairwise products of vectors + a multilayer perceptron over all of them."""

    def __init__(self, embedding: ClusterEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.deep = nn.Sequential(nn.Linear(8 * len(SIZES), 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: mg.Batch | dict[str, NDArray[np.int64]]) -> Tensor:
        bias, vectors = self.embedding(batch).values()  # layouts come sorted by name
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True) / 2
        return bias.sum(1) + pairs + self.deep(vectors.flatten(1))


def draw(
    steps: int, size: int, seed: int
) -> Iterator[tuple[dict[str, NDArray[np.int64]], Floats, Floats]]:
    """Ids by feature, labels, and the logits that the labels were drawn from."""
    world, rng = np.random.default_rng(7), np.random.default_rng(seed)
    truth = {name: world.normal(0, 0.7, (count, 3)) for name, count in SIZES.items()}
    for _ in range(steps):
        raw = {
            name: (count * rng.random(size) ** 2).astype(np.int64) for name, count in SIZES.items()
        }
        rows = [truth[name][raw[name]] for name in SIZES]
        logits = sum(row[:, 0] for row in rows) + (rows[0][:, 1:] * rows[1][:, 1:]).sum(1) - 0.5
        ids = {feature.name: feature.fids(raw[feature.name]) for feature in FEATURES}
        yield ids, (rng.random(size) < 1 / (1 + np.exp(-logits))).astype(np.float32), logits


def auc(labels: Floats, scores: Floats) -> float:
    ranks, ones = scores.argsort().argsort() + 1, labels.sum()
    return float((ranks[labels > 0].sum() - ones * (ones + 1) / 2) / (ones * (labels.size - ones)))


def main(model_dir: str = "model", steps: str = "300") -> float:
    torch.set_num_threads(1)  # the layers are small: more threads wait for each other
    with mg.connect(model_dir=model_dir) as cluster:
        model = DeepFM(
            ClusterEmbedding(cluster.features(*FEATURES, layouts={"bias": BIAS, "vec": VECTORS}))
        )
        optimizer, criterion = (
            torch.optim.Adam(model.parameters(), lr=0.003),
            nn.BCEWithLogitsLoss(reduction="sum"),
        )
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

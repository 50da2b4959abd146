"""The demo task: a generated click log with millions of possible ids, drawn from a known model.

Popularity follows Zipf's law. An impression is clicked with probability sigmoid(truth), where the truth is a sum of one
effect per id and a linear part over dense columns. Since the truth is known, so is the best AUC that any model can
reach on the evaluation set. Everything is decided by the seed and the batch number.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.wire.schema import Adagrad, Segment, TableConfig, VariableConfig
from megalith.worker import click_kernels
from megalith.worker.auc import auc
from megalith.worker.task import Gradients, Ids, Read, Rows, Variables

DIM = 8
_NUM_DENSE = 4
_BIAS = -1.0  # about a third of the impressions are clicked
_DENSE_EFFECTS = np.array([1.2, -0.9, 0.6, -0.3], np.float32)
_EVALUATION_SEED = 1 << 40  # batch numbers stay far below: the evaluation set is never trained on
_EVALUATION_EXAMPLES = 100_000


@dataclass(frozen=True, slots=True)
class Feature:
    """A categorical column: how many ids there are, how fast popularity falls with rank, how much an id matters."""

    name: str
    slot: int
    num_ids: int
    exponent: float
    effect: float

    @property
    def _spread(self) -> float:
        """Effects are uniform within this, which gives them the standard deviation `effect`."""
        return math.sqrt(3.0) * self.effect

    def draw(self, uniform: NDArray[np.float64], truth: NDArray[np.float32]) -> NDArray[np.int64]:
        """Ids for uniform numbers, popular ones more often; their true effects are added to `truth`.

        An id has the slot in bits 48 to 62, below it the scrambled rank, so that it does not tell its rank.
        """
        ids = np.empty(uniform.size, np.int64)
        click_kernels.draw(
            uniform, self.num_ids, self.exponent, self.slot, self._spread, ids, truth
        )
        return ids

    def effects_of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """The true effect of each id, decided by the id alone."""
        out = np.empty(ids.size, np.float32)
        click_kernels.effects(ids, self._spread, out)
        return out


FEATURES = (
    Feature("user", 1, 2_000_000, 1.25, 0.5),
    Feature("item", 2, 1_000_000, 1.25, 0.7),
    Feature("campaign", 3, 10_000, 1.1, 0.7),
    Feature("hour", 4, 24, 0.3, 0.4),
)


@dataclass(frozen=True, slots=True)
class ClickBatch:
    """Impressions in columns."""

    ids: dict[str, NDArray[np.int64]]
    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    truth: NDArray[np.float32]


def draw_batch(seed: int, number: int, size: int) -> ClickBatch:
    """Batch `number` of the log of `seed`."""
    rng = np.random.default_rng([seed, number])
    uniform = [rng.random(size) for _ in FEATURES]
    dense = rng.standard_normal((size, _NUM_DENSE), np.float32)
    truth = _BIAS + dense @ _DENSE_EFFECTS
    ids = {
        feature.name: feature.draw(drawn, truth)
        for feature, drawn in zip(FEATURES, uniform, strict=True)
    }
    labels = (rng.random(size, np.float32) < _sigmoid(truth)).astype(np.float32)
    return ClickBatch(ids, dense, labels, truth)


class ClicksTask:
    """Logistic regression on embeddings: a vector per feature reads out its rows, another one the dense columns."""

    def __init__(self, *, batch_size: int, num_examples: int, seed: int) -> None:
        self._batch_size, self._num_examples, self._seed = batch_size, num_examples, seed
        readout = np.random.default_rng(seed).standard_normal((len(FEATURES), DIM)) / np.sqrt(DIM)
        self.tables = tuple(
            TableConfig(
                feature.name,
                (Segment(DIM, optimizer=Adagrad(0.15, initial_accumulator_value=0.1)),),
            )
            for feature in FEATURES
        )
        self.variables = (
            VariableConfig("readout", readout.astype(np.float32), Adagrad(0.01)),
            VariableConfig("dense", np.zeros(_NUM_DENSE, np.float32), Adagrad(0.05)),
            VariableConfig("bias", np.zeros(1, np.float32), Adagrad(0.05)),
        )

    def num_batches(self) -> int:
        return self._num_examples // self._batch_size

    def batch(self, number: int) -> ClickBatch:
        return draw_batch(self._seed, number, self._batch_size)

    def num_examples(self, batch: ClickBatch) -> int:
        return batch.labels.size

    def ids(self, batch: ClickBatch) -> Ids:
        return batch.ids

    def gradients(self, batch: ClickBatch, rows: Rows, variables: Variables) -> Gradients:
        """Gradients of the summed logistic loss for rows, of its mean for variables.

        A row is touched by few examples of a batch, so its step must not shrink with the batch size; a variable is
        touched by all of them.
        """
        logits = _logits(batch, rows, variables)
        error = _sigmoid(logits) - batch.labels
        mean_error = error / error.size
        readout = variables["readout"]
        readout_gradient = np.stack([mean_error @ rows[feature.name] for feature in FEATURES])
        return Gradients(
            rows={
                feature.name: error[:, np.newaxis] * readout[place]
                for place, feature in enumerate(FEATURES)
            },
            variables={
                "readout": readout_gradient,
                "dense": mean_error @ batch.dense,
                "bias": mean_error.sum(keepdims=True),
            },
            loss=float(np.mean(_softplus(logits) - batch.labels * logits)),
        )

    def evaluate(self, read: Read) -> dict[str, float]:
        """AUC on impressions that nobody trained on, beside the AUC of the truth itself."""
        batch = draw_batch(self._seed, _EVALUATION_SEED, _EVALUATION_EXAMPLES)
        rows, variables = read(batch.ids, [variable.name for variable in self.variables])
        return {
            "auc": auc(batch.labels, _logits(batch, rows, variables)),
            "best_auc": auc(batch.labels, batch.truth),
        }


def make_task(*, batch_size: int, num_examples: int, seed: int) -> ClicksTask:
    return ClicksTask(batch_size=batch_size, num_examples=num_examples, seed=seed)


def _logits(batch: ClickBatch, rows: Rows, variables: Variables) -> NDArray[np.float32]:
    logits: NDArray[Any] = batch.dense @ variables["dense"] + variables["bias"]
    for place, feature in enumerate(FEATURES):
        logits += rows[feature.name] @ variables["readout"][place]
    return logits


def _softplus(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(1 + exp(values)); np.logaddexp takes four times as long."""
    return np.maximum(values, 0.0) + np.log1p(np.exp(-np.abs(values)))


def _sigmoid(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.reciprocal(1.0 + np.exp(-values), dtype=np.float32)

"""The demo task: a generated click log with millions of possible ids, drawn from a known model.

It is also the pattern for a task of your own. `megalith train my.package:make_task` calls your
factory with the keywords of `make_task` below, and trains what it returns. That object needs what
`megalith.worker.task.Task` lists; here it is `ClicksTask`. In the order of one step:

    tables, variables   what the chief creates before the first step
    num_batches         how long training is; 0 = until it is stopped
    batch(number)       the input, always the same for the same number: workers are replaced
    ids(batch)          which rows the batch needs, by table; the worker pulls them
    gradients(...)      one forward and backward pass in NumPy; the worker pushes the result
    evaluate(read)      figures of merit at the end; the chief logs and reports them

Popularity follows Zipf's law. An impression is clicked with probability sigmoid(truth), where the
truth is a sum of one effect per id and a linear part over dense columns. Since the truth is known,
so is the best AUC that any model can reach on the evaluation set. Everything is decided by the seed
and the batch number.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.schema import Adagrad, Segment, TableConfig, VariableConfig
from megalith.tasks import click_kernels
from megalith.tasks.auc import auc
from megalith.worker.task import Gradients, IdsByTable, Read, RowsByTable, Variables

DIM = 8
_NUM_DENSE = 4
_BIAS = -1.0  # about a third of the impressions are clicked
_DENSE_EFFECTS = np.array([1.2, -0.9, 0.6, -0.3], np.float32)
_EVALUATION_SEED = 1 << 40  # batch numbers stay far below: the evaluation set is never trained on
_EVALUATION_EXAMPLES = 100_000


@dataclass(frozen=True, slots=True)
class CategoricalColumn:
    """A column of ids, and a table of the same name."""

    name: str
    slot: int
    num_ids: int
    exponent: float  # how fast popularity falls with rank
    effect: float  # standard deviation of what an id adds to the truth

    @property
    def _spread(self) -> float:
        """Effects are uniform within this, which gives them the standard deviation `effect`."""
        return math.sqrt(3.0) * self.effect

    def draw(self, uniform: NDArray[np.float64], truth: NDArray[np.float32]) -> NDArray[np.int64]:
        """Ids for uniform numbers, popular ones more often; adds their true effects to `truth`.

        An id has the slot in bits 48 to 62, below it the scrambled rank, so that it does not tell
        its rank.
        """
        ids = np.empty(uniform.size, np.int64)
        click_kernels.draw(
            uniform, self.num_ids, self.exponent, self.slot, self._spread, ids, truth
        )
        return ids


COLUMNS = (
    CategoricalColumn("user", 1, 2_000_000, 1.25, 0.5),
    CategoricalColumn("item", 2, 1_000_000, 1.25, 0.7),
    CategoricalColumn("campaign", 3, 10_000, 1.1, 0.7),
    CategoricalColumn("hour", 4, 24, 0.3, 0.4),
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
    uniform = [rng.random(size) for _ in COLUMNS]

    dense = rng.standard_normal((size, _NUM_DENSE), np.float32)
    truth = _BIAS + dense @ _DENSE_EFFECTS

    ids = {}
    for column, numbers in zip(COLUMNS, uniform, strict=True):
        ids[column.name] = column.draw(numbers, truth)

    probability = _sigmoid(truth)
    is_clicked = rng.random(size, np.float32) < probability
    labels = is_clicked.astype(np.float32)
    return ClickBatch(ids, dense, labels, truth)


class ClicksTask:
    """Logistic regression on embeddings.

    The logit of an impression is a sum: for each categorical column its row times a vector of the
    variable `readout`, the dense columns times the variable `dense`, and the variable `bias`.
    """

    def __init__(self, *, batch_size: int, num_examples: int, seed: int) -> None:
        self._batch_size = batch_size
        self._num_examples = num_examples
        self._seed = seed

        optimizer = Adagrad(0.15, initial_accumulator_value=0.1)
        segment = Segment(DIM, optimizer=optimizer)
        self.tables = tuple(TableConfig(column.name, (segment,)) for column in COLUMNS)

        rng = np.random.default_rng(seed)
        readout = rng.standard_normal((len(COLUMNS), DIM)) / np.sqrt(DIM)
        dense = np.zeros(_NUM_DENSE, np.float32)
        bias = np.zeros(1, np.float32)
        self.variables = (
            VariableConfig("readout", readout.astype(np.float32), Adagrad(0.01)),
            VariableConfig("dense", dense, Adagrad(0.05)),
            VariableConfig("bias", bias, Adagrad(0.05)),
        )

    def num_batches(self) -> int:
        return self._num_examples // self._batch_size

    def batch(self, number: int) -> ClickBatch:
        return draw_batch(self._seed, number, self._batch_size)

    def num_examples(self, batch: ClickBatch) -> int:
        return batch.labels.size

    def ids(self, batch: ClickBatch) -> IdsByTable:
        return batch.ids

    def gradients(self, batch: ClickBatch, rows: RowsByTable, variables: Variables) -> Gradients:
        """Gradients of the summed logistic loss for rows, of its mean for variables.

        A row is touched by few examples of a batch, so its step must not shrink with the batch
        size; a variable is touched by all of them.
        """
        logits = _logits(batch, rows, variables)
        error = _sigmoid(logits) - batch.labels
        mean_error = error / error.size
        readout = variables["readout"]

        row_gradients = {}
        readout_gradients = []
        for number, column in enumerate(COLUMNS):
            row_gradients[column.name] = error[:, np.newaxis] * readout[number]
            readout_gradients.append(mean_error @ rows[column.name])

        losses = _softplus(logits) - batch.labels * logits
        return Gradients(
            rows=row_gradients,
            variables={
                "readout": np.stack(readout_gradients),
                "dense": mean_error @ batch.dense,
                "bias": mean_error.sum(keepdims=True),
            },
            loss=float(np.mean(losses)),
        )

    def evaluate(self, read: Read) -> dict[str, float]:
        """AUC on impressions that nobody trained on, beside the AUC of the truth itself."""
        batch = draw_batch(self._seed, _EVALUATION_SEED, _EVALUATION_EXAMPLES)
        names = [variable.name for variable in self.variables]
        rows, variables = read(batch.ids, names)
        logits = _logits(batch, rows, variables)
        return {
            "auc": auc(batch.labels, logits),
            "best_auc": auc(batch.labels, batch.truth),
        }


def make_task(*, batch_size: int, num_examples: int, seed: int) -> ClicksTask:
    """What `--task=clicks` calls; a task of your own has a factory with these keywords too."""
    return ClicksTask(batch_size=batch_size, num_examples=num_examples, seed=seed)


def _logits(batch: ClickBatch, rows: RowsByTable, variables: Variables) -> NDArray[np.float32]:
    logits: NDArray[Any] = batch.dense @ variables["dense"] + variables["bias"]
    for number, column in enumerate(COLUMNS):
        logits += rows[column.name] @ variables["readout"][number]

    return logits


def _softplus(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(1 + exp(values)); np.logaddexp takes four times as long."""
    return np.maximum(values, 0.0) + np.log1p(np.exp(-np.abs(values)))


def _sigmoid(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.reciprocal(1.0 + np.exp(-values), dtype=np.float32)

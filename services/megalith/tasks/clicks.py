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

The methods that begin with `served_` are for replicas, which predict with the same model; a task
that is not served needs none of them.

Popularity follows Zipf's law. An impression is clicked with probability sigmoid(truth), where the
truth is a sum of one effect per id and a linear part over dense columns. Since the truth is known,
so is the best AUC that any model can reach on the evaluation set. Everything is decided by the seed
and the batch number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.client import Feature, FeatureLayouts, Located, Slice
from megalith.errors import ShapeMismatch
from megalith.kernels.dtypes import F32
from megalith.replica.predicting.served_task import (
    FeatureValues,
    LayoutArrays,
    ReadModel,
    ServedExamples,
)
from megalith.schema import Adagrad, Segment, TableConfig, VariableConfig
from megalith.tasks import click_kernels
from megalith.tasks.auc import auc
from megalith.tasks.ctr_request import requested_dense
from megalith.tasks.input.columns import DenseColumn
from megalith.worker.task import Gradients, IdsByTable, Read, RowsByTable, Variables

DIM = 8
_NUM_DENSE = 4
_DENSE_COLUMNS = tuple(DenseColumn(f"dense{number}") for number in range(_NUM_DENSE))
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
    chance = rng.random(size, np.float32)
    is_clicked = chance < probability

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
        drawn = rng.standard_normal((len(COLUMNS), DIM))
        readout = drawn / np.sqrt(DIM)

        dense = np.zeros(_NUM_DENSE, np.float32)
        bias = np.zeros(1, np.float32)

        faster = Adagrad(0.05)
        self.variables = (
            VariableConfig("readout", readout.astype(np.float32), Adagrad(0.01)),
            VariableConfig("dense", dense, faster),
            VariableConfig("bias", bias, faster),
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

    # ------------------------------------------------------------------ what replicas call

    @property
    def served_features(self) -> Sequence[str]:
        return [column.name for column in COLUMNS]

    @property
    def served_dense(self) -> Sequence[str]:
        return [column.column for column in _DENSE_COLUMNS]

    def served_layouts(
        self, features: Mapping[str, FeatureValues], read: ReadModel
    ) -> LayoutArrays:
        """The rows of each categorical column; values are ids."""
        located = _located(features)
        rows, _ = read(located.ids, ())
        return _LAYOUTS.assemble(located, rows, {}).outputs

    def served_logits(self, examples: ServedExamples, read: ReadModel) -> F32:
        """What is missing adds nothing to a logit: an id that is left out, or a dense number."""
        located = _located(examples.features)
        dense = requested_dense(examples, _DENSE_COLUMNS, located.size)
        names = [variable.name for variable in self.variables]
        rows, variables = read(located.ids, names)

        layouts = _LAYOUTS.assemble(located, rows, {}).outputs
        rows_of_examples = {name: arrays[0] for name, arrays in layouts.items()}

        known = np.nan_to_num(dense, nan=0.0)
        return _sum_of_effects(known, rows_of_examples, variables)


# How the ids of a request become rows of its examples.
_LAYOUTS = FeatureLayouts([Feature(column.name, (Slice("row", DIM),)) for column in COLUMNS])


def _located(features: Mapping[str, FeatureValues]) -> Located:
    ids = {}
    for name, values in features.items():
        ids[name] = values.as_ids(name)

        longest = int(np.diff(ids[name].row_splits).max(initial=0))
        if longest > 1:
            raise ShapeMismatch(f"feature {name}: an example has {longest} ids, expected one")

    return _LAYOUTS.locate(ids)


def make_task(*, batch_size: int, num_examples: int, seed: int) -> ClicksTask:
    """What `--task=clicks` calls; a task of your own has a factory with these keywords too."""
    return ClicksTask(batch_size=batch_size, num_examples=num_examples, seed=seed)


def _logits(batch: ClickBatch, rows: RowsByTable, variables: Variables) -> F32:
    return _sum_of_effects(batch.dense, rows, variables)


def _sum_of_effects(dense: F32, rows: RowsByTable, variables: Variables) -> F32:
    logits: NDArray[Any] = dense @ variables["dense"]
    logits += variables["bias"]

    readout = variables["readout"]
    for number, column in enumerate(COLUMNS):
        logits += rows[column.name] @ readout[number]

    return logits


def _softplus(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(1 + exp(values)); np.logaddexp takes four times as long."""
    beyond = np.exp(-np.abs(values))
    return np.maximum(values, 0.0) + np.log1p(beyond)


def _sigmoid(values: NDArray[np.float32]) -> NDArray[np.float32]:
    odds_against = np.exp(-values)
    return np.reciprocal(1.0 + odds_against, dtype=np.float32)

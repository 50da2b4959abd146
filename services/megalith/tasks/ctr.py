"""A click model on your own columns: `megalith train ctr --data ... --label ... --features ...`.

Ids are `mg.hash_ids` of the values, in a table for each feature, which has the feature's name. A
column of `--lists history:item` has its rows in the table `item`, and its rows are averaged. Dense
columns are brought to mean 0 and deviation 1 by the variables `dense_mean` and `dense_deviation`,
which are measured once, on the first row group, and belong to the model from then on.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.client import Feature, FeatureLayouts, Located, Mean, Sum, VariableConfig
from megalith.errors import NonFiniteValue
from megalith.tasks.auc import auc
from megalith.tasks.ctr_options import CtrOptions, names, options_of
from megalith.tasks.evaluation import Evaluation
from megalith.tasks.input.dataset import Dataset
from megalith.tasks.input.examples import Examples
from megalith.tasks.input.index import DataIndex
from megalith.tasks.models import MODELS
from megalith.tasks.models.model import Inputs, ModelShape
from megalith.worker.task import Gradients, IdsByTable, Read, RowsByTable, Variables

F32 = NDArray[np.float32]

_EVALUATED_AT_ONCE = 8192
_MAX_SLICES = 50  # of one column: values beyond the most frequent are not shown
_KEPT_DAYS = 36500


@dataclass(frozen=True, slots=True)
class CtrBatch:
    """Examples whose rows are known, and where they are from, for messages."""

    examples: Examples
    located: Located
    where: str


class CtrTask:
    """Trains one of `megalith.tasks.models`. What is needed of a task is in `worker.task.Task`.

    `index` and `eval_index` are files with the row counts of the data; without them rows are
    counted here. `num_tracks` is the number of workers that divide the row groups between them.
    """

    def __init__(
        self,
        options: CtrOptions,
        *,
        batch_size: int,
        num_examples: int,
        seed: int,
        index: str = "",
        eval_index: str = "",
        num_tracks: int = 1,
    ) -> None:
        self._options = options
        self._eval_index = eval_index
        self._batch_size = batch_size
        self._num_examples = num_examples
        columns = options.columns()
        self._dataset = Dataset(
            _index(index, options.data),
            columns,
            batch_size=batch_size,
            num_tracks=num_tracks,
            shuffle_seed=seed if options.is_shuffled else None,
            text_columns=tuple(names(options.text)),
        )

        shape = ModelShape(
            features=tuple(column.column for column in columns.ids),
            num_dense=len(columns.dense),
            dim=options.dim,
            hidden=options.hidden_widths(),
            row_rate=options.row_rate,
            rate=options.rate,
            seed=seed,
        )
        self._model = MODELS[options.model](shape)
        self._layouts = self._feature_layouts()
        self.tables = self._layouts.tables
        self.variables = (*self._model.variables, *self._dense_statistics())
        self._variable_names = [variable.name for variable in self.variables]

    def num_batches(self) -> int:
        if self._num_examples:
            return -(-self._num_examples // self._batch_size)
        return self._options.epochs * self._dataset.batches_per_epoch

    def batch(self, number: int) -> CtrBatch:
        drawn = self._dataset.batch(number)
        located = self._layouts.locate(drawn.examples.ids)
        return CtrBatch(drawn.examples, located, drawn.where)

    def num_examples(self, batch: CtrBatch) -> int:
        return len(batch.examples)

    def ids(self, batch: CtrBatch) -> IdsByTable:
        return batch.located.ids

    def gradients(self, batch: CtrBatch, rows: RowsByTable, variables: Variables) -> Gradients:
        """Gradients of the summed logistic loss for rows, of its mean for variables.

        A row is touched by few examples of a batch, so its step must not shrink with the batch
        size; a variable is touched by all of them.
        """
        looked = self._layouts.assemble(batch.located, rows, variables)
        inputs = self._inputs(batch.examples, looked.outputs, variables)
        logits, backward = self._model.forward(inputs, variables)
        _check_finite(logits, batch.where)

        labels = batch.examples.labels
        losses = np.logaddexp(0.0, logits) - labels * logits
        error = _sigmoid(logits) - labels
        found = backward(error)

        row_gradients = {}
        summed = self._layouts.summed(looked, found.layouts)
        for table, (_, sums) in summed.items():
            row_gradients[table] = sums

        variable_gradients = {}
        for name, gradient in found.variables.items():
            variable_gradients[name] = gradient / labels.size

        return Gradients(
            rows=row_gradients,
            variables=variable_gradients,
            loss=float(np.mean(losses)),
            req_time_s=batch.examples.newest_s,
            metrics=self._metrics(batch.examples, logits),
        )

    def evaluate(self, read: Read) -> dict[str, float]:
        """AUC, log-loss and calibration on the files of `--eval-data`, and the AUC of slices."""
        options = self._options
        if not options.eval_data:
            return {}

        columns = replace(options.columns(), slices=tuple(names(options.slice_by)))
        dataset = Dataset(
            _index(self._eval_index, options.eval_data),
            columns,
            batch_size=_EVALUATED_AT_ONCE,
            text_columns=tuple(names(options.text)),
        )

        whole = Evaluation()
        slices: dict[tuple[str, str], Evaluation] = {}
        missing = 0
        for number in range(dataset.batches_per_epoch):
            examples = dataset.batch(number).examples
            logits = self._predict(examples, read)
            whole.add(examples.labels, logits)
            missing += int(examples.missing.sum())
            _add_slices(slices, examples, logits)

        figures = whole.figures() | _slice_figures(slices)
        if missing:
            figures["missing_values"] = float(missing)

        return figures

    def _predict(self, examples: Examples, read: Read) -> F32:
        located = self._layouts.locate(examples.ids)
        rows, variables = read(located.ids, self._variable_names)
        looked = self._layouts.assemble(located, rows, variables)
        logits, _ = self._model.forward(
            self._inputs(examples, looked.outputs, variables), variables
        )
        return logits

    def _inputs(
        self, examples: Examples, outputs: dict[str, tuple[F32, ...]], variables: Variables
    ) -> Inputs:
        layouts = {name: arrays[0] for name, arrays in outputs.items()}
        dense = examples.dense
        if dense.shape[1]:
            scaled = (dense - variables["dense_mean"]) / variables["dense_deviation"]
            dense = np.nan_to_num(scaled, nan=0.0)  # what is missing counts as the mean

        return Inputs(layouts, dense)

    def _metrics(self, examples: Examples, logits: F32) -> dict[str, float]:
        metrics = {"auc": auc(examples.labels, logits)}
        missing = int(examples.missing.sum())
        if missing:
            metrics["missing_per_example"] = missing / len(examples)

        return metrics

    def _feature_layouts(self) -> FeatureLayouts:
        options = self._options
        features = []
        for column in options.columns().ids:
            feature = Feature(
                column.column,
                self._model.slices,
                combiner=Mean() if column.is_list else Sum(),
                occurrence_threshold=options.min_count if options.min_count > 1 else 0,
                expire_days=options.expire_days or _KEPT_DAYS,
                table=column.table,
            )
            features.append(feature)

        return FeatureLayouts(features, self._model.layouts)

    def _dense_statistics(self) -> tuple[VariableConfig, ...]:
        """Mean and deviation of the dense columns, as variables without an optimizer."""
        if not self._options.dense:
            return ()

        sample = self._dataset.first_block().dense.astype(np.float64)
        present = ~np.isnan(sample)
        counts = np.maximum(present.sum(axis=0), 1)

        filled = np.where(present, sample, 0.0)
        means = filled.sum(axis=0) / counts

        squares = np.where(present, (sample - means) ** 2, 0.0)
        variances = squares.sum(axis=0) / counts
        deviations = np.sqrt(variances)
        deviations[deviations == 0.0] = 1.0  # a column that is the same everywhere

        return (
            VariableConfig("dense_mean", means.astype(np.float32)),
            VariableConfig("dense_deviation", deviations.astype(np.float32)),
        )


def make_task(
    *,
    batch_size: int,
    num_examples: int,
    seed: int,
    index: str = "",
    eval_index: str = "",
    num_tracks: int = 1,
    **options: Any,
) -> CtrTask:
    """What `--task=ctr` calls; `options` are those of `CtrOptions`."""
    return CtrTask(
        options_of(options),
        batch_size=batch_size,
        num_examples=num_examples,
        seed=seed,
        index=index,
        eval_index=eval_index,
        num_tracks=num_tracks,
    )


def _index(path: str, patterns: str) -> DataIndex:
    if path:
        return DataIndex.load(Path(path))
    return DataIndex.build(names(patterns))


def _add_slices(slices: dict[tuple[str, str], Evaluation], examples: Examples, logits: F32) -> None:
    for column, values in examples.slices.items():
        for value in np.unique(values):
            is_here = values == value
            slice_ = slices.setdefault((column, str(value)), Evaluation())
            slice_.add(examples.labels[is_here], logits[is_here])


def _slice_figures(slices: dict[tuple[str, str], Evaluation]) -> dict[str, float]:
    """The AUC of the largest slices that have both labels."""
    largest = sorted(slices.items(), key=lambda item: -item[1].num_examples)
    figures = {}
    for (column, value), evaluation in largest[:_MAX_SLICES]:
        figure = evaluation.auc
        if not np.isnan(figure):
            figures[f"auc {column}={value}"] = figure

    return figures


def _check_finite(logits: F32, where: str) -> None:
    bad = np.count_nonzero(~np.isfinite(logits))
    if bad:
        raise NonFiniteValue(
            f"{bad} of {logits.size} predictions are NaN or infinite in a batch that begins in "
            f"{where}; smaller learning rates may help: --row-rate, --rate"
        )


def _sigmoid(values: F32) -> F32:
    result: F32 = 0.5 + 0.5 * np.tanh(0.5 * values)
    return result

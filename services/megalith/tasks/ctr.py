"""A click model on your own columns: `megalith train ctr --data ... --label ... --features ...`.

Ids are `mg.hash_ids` of the values, in a table for each feature, which has the feature's name. A
column of `--lists history:item` has its rows in the table `item`, and its rows are averaged. Dense
columns are brought to mean 0 and deviation 1 by the variables `dense_mean` and `dense_deviation`,
which are measured once, on the first row group that has values of the column, and belong to the
model from then on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.client import (
    Clip,
    Feature,
    FeatureLayouts,
    GradientRecipe,
    Located,
    Mean,
    Sum,
    VariableConfig,
)
from megalith.errors import InvalidRequest, InvalidSetting, NonFiniteValue
from megalith.replica.predicting.served_task import (
    FeatureValues,
    LayoutArrays,
    ReadModel,
    ServedExamples,
)
from megalith.tasks.ctr_options import CtrOptions, names, options_of
from megalith.tasks.ctr_request import requested_dense, requested_ids
from megalith.tasks.ctr_stream import file_settings, open_stream
from megalith.tasks.evaluation import Evaluation, OnlineEvaluation
from megalith.tasks.grouped_evaluation import GroupedEvaluation
from megalith.tasks.input.dataset import Dataset
from megalith.tasks.input.examples import Examples, taken
from megalith.tasks.input.faults import examples_of_batch
from megalith.tasks.input.index import DataIndex
from megalith.tasks.input.kafka import is_topic
from megalith.tasks.input.mapped import MappedInput
from megalith.tasks.input.pieced_tables import PiecedFiles
from megalith.tasks.input.schemas import check_kinds, kinds_of, text_among
from megalith.tasks.input.unlabelled import blocks_to_predict
from megalith.tasks.input.windows import Window
from megalith.tasks.models import MODELS
from megalith.tasks.models.model import ModelShape
from megalith.tasks.models.step import ModelStep
from megalith.tasks.predicting import Predicted
from megalith.worker.input import Input, InputBatch, Mode
from megalith.worker.numbered_input import NumberedInput
from megalith.worker.task import Gradients, IdsByTable, Read, RowsByTable, Variables

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_EVALUATED_AT_ONCE = 8192
_KEPT_DAYS = 36500
_MOST_MEASURED = 20  # row groups, in search of one that has values of each dense column


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
    With `scores_only` the data to train on is not looked at: it may be gone, or elsewhere.
    `kinds` are those of the columns that the model was trained on: other ids are refused, in files
    and in requests, and text is imposed on files that know no types. Without them they are those of
    the data.
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
        scores_only: bool = False,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        self._kinds = dict(kinds or {})
        options = _with_text(options, self._kinds)
        self._options = options
        self._eval_index = eval_index
        self._batch_size = batch_size
        self._num_examples = num_examples
        if num_examples and options.is_followed:
            raise InvalidSetting(
                f"--num-examples={num_examples} is for data that is not followed; --max-steps "
                "bounds any job"
            )

        columns = options.columns()
        self._training: Dataset | None = None
        if not scores_only:
            self._training = Dataset(
                _index(index, options.data, options, options.window()),
                columns,
                batch_size=batch_size,
                num_tracks=num_tracks,
                shuffle_seed=seed if options.is_shuffled else None,
                text_columns=tuple(names(options.text)),
                kinds=self._kinds,
            )
            schema = self._training.schema
            check_kinds(options.data, schema, columns.ids, self._kinds)
            self._kinds |= kinds_of(schema, columns.ids)
            self._options = _with_text(options, self._kinds)

        shape = ModelShape(
            features=tuple(column.column for column in columns.ids),
            num_dense=len(columns.dense),
            dim=options.dim,
            hidden=options.hidden_widths(),
            row_rate=options.row_rate,
            row_warmup_steps=options.row_warmup_steps(),
            rate=options.rate,
            seed=seed,
        )
        self._model = MODELS[options.model](shape)
        self._layouts = self._feature_layouts()
        self._online = OnlineEvaluation()
        self._step = ModelStep(self._model, self._layouts, max(1, options.threads))
        self._recipe = GradientRecipe(
            clip=Clip.BY_DENSE_AND_SPARSE, clip_norm=options.clip_norm or None
        )
        self.tables = self._layouts.tables
        self.variables = (*self._model.variables, *self._dense_statistics())
        self._variable_names = [variable.name for variable in self.variables]

    @property
    def _dataset(self) -> Dataset:
        """What is trained on."""
        if self._training is None:
            raise InvalidRequest("a task that only scores has no data to train on")

        return self._training

    def input(self, mode: Mode, index: int, count: int) -> Input[CtrBatch]:
        """The share of a worker: of files by number, or of what comes."""
        stream = open_stream(
            self._options, self._dataset.schema, self._batch_size, index=index, count=count
        )
        if stream is not None:
            return MappedInput(stream, self._streamed)

        return NumberedInput(
            self.batch,
            self.num_batches(),
            index,
            count,
            self._batch_size,
            of=self._dataset.digest,
        )

    def pieced_input(self, mode: Mode) -> Input[CtrBatch]:
        """What is handed out: row groups of the files, or files as they come."""
        options = self._options
        if options.is_topic:
            raise InvalidSetting(
                f"--sharding=dynamic: partitions of {options.data} belong to workers by their "
                "index; use --sharding static"
            )
        if self._num_examples:
            raise InvalidSetting(
                f"--num-examples={self._num_examples} is for --sharding static; --max-steps "
                "bounds any job"
            )

        files = file_settings(options, self._batch_size)
        pieces: Input[pa.Table]
        if files is not None:
            pieces = PiecedFiles(files, self._dataset.schema)
        else:
            pieces = self._dataset.pieces(options.epochs)

        return MappedInput(pieces, self._streamed)

    def num_batches(self) -> int:
        if self._num_examples:
            return -(-self._num_examples // self._batch_size)
        return self._options.epochs * self._dataset.batches_per_epoch

    def batch(self, number: int) -> CtrBatch:
        drawn = self._dataset.batch(number)
        located = self._layouts.locate(drawn.examples.ids)
        return CtrBatch(drawn.examples, located, drawn.where)

    def _streamed(self, drawn: InputBatch[pa.Table]) -> InputBatch[CtrBatch]:
        columns = self._options.columns()
        examples = examples_of_batch(drawn, columns, self._dataset.schema)
        located = self._layouts.locate(examples.ids)
        batch = CtrBatch(examples, located, drawn.where)

        req_time_s = examples.newest_s or drawn.req_time_s
        return InputBatch(batch, drawn.cursor, req_time_s, drawn.where)

    def num_examples(self, batch: CtrBatch) -> int:
        return len(batch.examples)

    def ids(self, batch: CtrBatch) -> IdsByTable:
        return batch.located.ids

    def gradients(self, batch: CtrBatch, rows: RowsByTable, variables: Variables) -> Gradients:
        """Gradients of the summed logistic loss for rows, of its mean for variables."""
        examples = batch.examples
        dense = self._scaled(examples.dense, variables)
        labels = examples.labels
        found = self._step.gradients(batch.located, rows, variables, dense, labels)
        _check_finite(found.logits, batch.where)

        # Of the norms of the recipe only that of the layers has a limit: rows stay as they are.
        by_variable, by_row = self._recipe.prepare(found.variables, found.rows)
        losses = np.logaddexp(0.0, found.logits) - labels * found.logits
        return Gradients(
            rows=by_row,
            variables=by_variable,
            loss=float(np.mean(losses)),
            req_time_s=examples.newest_s,
            metrics=self._metrics(examples, found.logits),
            missing_values=int(examples.missing.sum()),
        )

    def evaluate(self, read: Read) -> dict[str, float]:
        """AUC, log-loss and calibration on the files of `--eval-data`, and the AUC of groups."""
        options = self._options
        if not options.eval_data:
            return {}

        columns = replace(options.columns(), groups=tuple(names(options.group_by)))
        dataset = Dataset(
            _index(self._eval_index, options.eval_data, options),
            columns,
            batch_size=_EVALUATED_AT_ONCE,
            text_columns=tuple(names(options.text)),
            kinds=self._kinds,
        )
        check_kinds(options.eval_data, dataset.schema, columns.ids, self._kinds)

        whole = Evaluation()
        grouped = GroupedEvaluation()
        missing = 0
        for number in range(dataset.batches_per_epoch):
            examples = dataset.batch(number).examples
            logits = self._predict(examples, read)
            whole.add(examples.labels, logits)
            missing += int(examples.missing.sum())
            grouped.add(examples.groups, examples.labels, logits)

        figures = whole.figures() | grouped.figures()
        if missing:
            figures["missing_values"] = float(missing)

        return figures

    def predictions(self, read: Read, fields: Sequence[str]) -> Iterator[Predicted]:
        """What the model says of each row of the files of `--eval-data`.

        Without any it is those of `--data`. The rows need no labels.
        """
        options = self._options
        if options.eval_data:
            index = _index("", options.eval_data, options)
        else:
            index = _index("", options.data, options, options.window())

        text_columns = tuple(names(options.text))
        blocks = blocks_to_predict(index, options.columns(), text_columns, fields, self._kinds)

        for block in blocks:
            examples = block.examples
            num_rows = len(examples)

            if not num_rows:
                continue

            parts = []
            for start in range(0, num_rows, _EVALUATED_AT_ONCE):
                stop = min(start + _EVALUATED_AT_ONCE, num_rows)
                rows = np.arange(start, stop)
                part = taken(examples, rows)

                parts.append(self._predict(part, read))

            logits = np.concatenate(parts)
            labels = examples.labels if block.has_labels else None
            field_names = block.fields.column_names
            columns = dict(zip(field_names, block.fields.columns, strict=True))

            yield Predicted(logits, labels, columns)

    @property
    def served_features(self) -> Sequence[str]:
        return [column.column for column in self._options.columns().ids]

    @property
    def served_dense(self) -> Sequence[str]:
        return [column.column for column in self._options.columns().dense]

    def served_layouts(
        self, features: Mapping[str, FeatureValues], read: ReadModel
    ) -> LayoutArrays:
        """The layouts of the model, of values as they are in the files."""
        located = self._located(features)
        rows, _ = read(located.ids, ())
        return self._layouts.assemble(located, rows, {}).outputs

    def served_logits(self, examples: ServedExamples, read: ReadModel) -> F32:
        """What the model says of examples of a request; what they lack is missing."""
        located = self._located(examples.features)
        raw = requested_dense(examples, self._options.columns().dense, located.size)
        rows, variables = read(located.ids, self._variable_names)
        dense = self._scaled(raw, variables)

        return self._step.predict(located, rows, variables, dense)

    def _located(self, features: Mapping[str, FeatureValues]) -> Located:
        ids = requested_ids(features, self._options.columns().ids, self._kinds)
        return self._layouts.locate(ids)

    def _predict(self, examples: Examples, read: Read) -> F32:
        located = self._layouts.locate(examples.ids)
        rows, variables = read(located.ids, self._variable_names)
        dense = self._scaled(examples.dense, variables)
        return self._step.predict(located, rows, variables, dense)

    def _scaled(self, dense: F32, variables: Variables) -> F32:
        if not dense.shape[1]:
            return dense

        scaled = (dense - variables["dense_mean"]) / variables["dense_deviation"]
        filled: F32 = np.nan_to_num(scaled, nan=0.0)  # what is missing counts as the mean
        return filled

    def _metrics(self, examples: Examples, logits: F32) -> dict[str, float]:
        """Of predictions that were made before the model is trained on their examples."""
        figures = self._online.add(examples.labels, logits)
        metrics = {"auc": figures["auc"], "calibration": figures["calibration"]}
        missing = int(examples.missing.sum())
        if missing:
            metrics["missing_per_example"] = missing / len(examples)

        return metrics

    def _feature_layouts(self) -> FeatureLayouts:
        options = self._options
        pushes_without_row = options.min_count - 1  # the next one makes it
        features = []
        for column in options.columns().ids:
            feature = Feature(
                column.column,
                self._model.slices,
                combiner=Mean() if column.is_list else Sum(),
                occurrence_threshold=pushes_without_row,
                expire_days=options.expire_days or _KEPT_DAYS,
                table=column.table,
            )
            features.append(feature)

        return FeatureLayouts(features, self._model.layouts)

    def _dense_statistics(self) -> tuple[VariableConfig, ...]:
        """Mean and deviation of the dense columns, as variables without an optimizer."""
        num_columns = len(self._options.columns().dense)
        if not num_columns:
            return ()

        if self._training is None:  # the checkpoint has them
            zeros = np.zeros(num_columns, np.float32)
            ones = np.ones(num_columns, np.float32)
            return (
                VariableConfig("dense_mean", zeros),
                VariableConfig("dense_deviation", ones),
            )

        samples = self._dataset.first_dense(_MOST_MEASURED)
        means, deviations = _statistics(samples, num_columns)
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
    scores_only: bool = False,
    kinds: Mapping[str, str] | None = None,
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
        scores_only=scores_only,
        kinds=kinds,
    )


def _statistics(samples: Iterable[F32], num_columns: int) -> tuple[F64, F64]:
    """(mean, deviation) of each column in the first sample that has values of it.

    A column without any has 0 and 1, and so has a deviation of 1 what is the same everywhere.
    """
    means = np.zeros(num_columns)
    deviations = np.ones(num_columns)
    is_measured = np.zeros(num_columns, bool)

    for sample in samples:
        for number in np.flatnonzero(~is_measured):
            column = sample[:, number].astype(np.float64)
            present = column[~np.isnan(column)]
            if not present.size:
                continue

            is_measured[number] = True
            means[number] = present.mean()
            deviations[number] = present.std() or 1.0

        if is_measured.all():
            break

    return means, deviations


def _with_text(options: CtrOptions, kinds: Mapping[str, str]) -> CtrOptions:
    """With columns of text as they are trained, also where a file knows no types."""
    text = text_among(kinds, names(options.text))
    return replace(options, text=",".join(text))


def _index(
    path: str, patterns: str, options: CtrOptions, window: Window | None = None
) -> DataIndex:
    if path:
        return DataIndex.load(Path(path))
    if is_topic(patterns):
        raise InvalidSetting(
            f"--data={patterns}: its columns are not known; megalith train ctr finds them out"
        )

    return DataIndex.build(names(patterns), window, names(options.header))


def _check_finite(logits: F32, where: str) -> None:
    bad = np.count_nonzero(~np.isfinite(logits))
    if bad:
        raise NonFiniteValue(
            f"{bad} of {logits.size} predictions are NaN or infinite in a batch that begins in "
            f"{where}; smaller learning rates may help: --row-rate, --rate; "
            "--on-nan skip leaves such batches out, and counts them"
        )

"""A task of features: you say what is looked up, what is read, and what a step learns."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client import Feature, FeatureLayouts, Layout, Located, Ragged
from megalith.errors import BadData, InvalidRequest, InvalidSetting, ShapeMismatch
from megalith.replica.predicting.served_task import (
    FeatureValues,
    LayoutArrays,
    ReadModel,
    ServedExamples,
)
from megalith.runtime.counting import counted
from megalith.schema import TableConfig, VariableConfig
from megalith.tasks.evaluation import Evaluation, OnlineEvaluation
from megalith.tasks.held_out import ListedInput
from megalith.tasks.input.mapped import MappedInput
from megalith.tasks.predicting import Predicted
from megalith.worker.input import Input, InputBatch, Mode
from megalith.worker.numbered_input import NumberedInput
from megalith.worker.pieced_input import NumberedPieces
from megalith.worker.task import (
    Gradients,
    IdsByTable,
    MakeSummaries,
    Read,
    RowsByTable,
    Variables,
)

logger = logging.getLogger(__name__)

F32 = NDArray[np.float32]
ArrayByLayout = Mapping[str, F32]


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """Examples in columns.

    `ids` has the ids of each feature: one for each example, or a Ragged list. `labels` are 0 to 1.
    `dense` are numbers that the model takes as they are, [examples, columns]. `fields` are further
    columns by name, which predictions may be written beside.
    """

    ids: Mapping[str, Ragged | ArrayLike]
    labels: F32
    dense: F32 | None = None
    fields: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step has learned.

    `layouts` has the gradient of each layout, in its shape, and `variables` those of variables. A
    layout without a gradient is not trained: rows of ids that only it has stay as they are. Of a
    layout of type none with several parts the gradient is a tuple, and None in it is a part without
    a gradient. `metrics` are further figures of the step, and `summaries` makes arrays for
    TensorBoard, as in `Gradients`.
    """

    loss: float
    layouts: Mapping[str, Any] = field(default_factory=dict)
    variables: Variables = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    summaries: MakeSummaries | None = None


@dataclass(frozen=True, slots=True)
class LocatedBatch:
    """A batch whose rows are known, and where it was read."""

    batch: FeatureBatch
    located: Located | None
    where: str


class FeatureTask:
    """The base of a task of your own. Batches are FeatureBatch.

    Set `features`, and perhaps `layouts` and `variables`, in the class or in its `__init__`. Write
    `step`. Write `num_batches` and `batch`, or `read` if the input has no numbers. Write `predict`
    and `held_out` if the model is to be evaluated. Without features it is a task of variables
    alone.

    With `shows_auc` each step brings the AUC and calibration of what `predict` says of its batch
    before the model is trained on it. That is one more forward pass.
    """

    features: Sequence[Feature] = ()
    layouts: Mapping[str, Layout] | None = None  # None: one for each feature, of its name
    variables: tuple[VariableConfig, ...] = ()
    shows_auc: bool = False

    # ------------------------------------------------------------------ what you write

    def num_batches(self) -> int:
        """Batches of all workers together; 0 = endless."""
        raise self._lacks("num_batches() and batch(number), or read(mode, index, count)")

    def batch(self, number: int) -> FeatureBatch:
        """The batch of that number: the same one whenever it is asked for, on any worker."""
        raise self._lacks("batch(number)")

    def read(self, mode: Mode, index: int, count: int) -> Input[FeatureBatch]:
        """What worker `index` of `count` reads.

        As it stands that is the numbered batches to train, and `held_out` otherwise.
        """
        if mode is Mode.TRAIN:
            # A cursor of batches of another size counts other examples.
            batch_size = len(self.batch(0))
            return NumberedInput(self.batch, self.num_batches(), index, count, batch_size)

        return ListedInput(self.held_out(), index, count)

    def pieces(self, mode: Mode) -> Input[FeatureBatch]:
        """What the controller hands out with `--sharding dynamic`: a `PiecedInput`.

        As it stands each numbered batch is a piece. A task that has `read` writes this too.
        """
        if type(self).read is not FeatureTask.read:
            raise InvalidSetting(
                f"--sharding=dynamic: {type(self).__name__}.read() divides its input itself; "
                "write pieces(mode), or use --sharding static"
            )

        batch_size = len(self.batch(0))
        return NumberedPieces(self.batch, self.num_batches(), f"batch_size={batch_size}")

    def held_out(self) -> Iterable[FeatureBatch]:
        """Batches that are not trained: what is evaluated and predicted."""
        return ()

    def step(self, batch: FeatureBatch, layouts: ArrayByLayout, variables: Variables) -> StepOutput:
        """One forward and backward pass.

        A layout of type none with several parts is a tuple of arrays here, and so is its gradient.
        """
        raise self._lacks("step(batch, layouts, variables)")

    def predict(self, batch: FeatureBatch, layouts: ArrayByLayout, variables: Variables) -> F32:
        """One logit for each example."""
        raise self._lacks("predict(batch, layouts, variables)")

    # ------------------------------------------------------------------ what workers call

    @property
    def tables(self) -> tuple[TableConfig, ...]:
        return self._layouts.tables if self._layouts else ()

    def input(self, mode: Mode, index: int, count: int) -> Input[LocatedBatch]:
        return MappedInput(self.read(mode, index, count), self._with_ids)

    def pieced_input(self, mode: Mode) -> Input[LocatedBatch]:
        return MappedInput(self.pieces(mode), self._with_ids)

    def num_examples(self, batch: LocatedBatch) -> int:
        return len(batch.batch)

    def ids(self, batch: LocatedBatch) -> IdsByTable:
        return batch.located.ids if batch.located else {}

    def gradients(self, batch: LocatedBatch, rows: RowsByTable, variables: Variables) -> Gradients:
        _check_labels(batch.batch.labels, batch.where)
        arrays, assembled = self._arrays(batch, rows, variables)
        figures = self._figures_before(batch.batch, arrays, variables) if self.shows_auc else {}
        learned = self.step(batch.batch, arrays, variables)
        if not isinstance(learned, StepOutput):
            raise InvalidRequest(f"step() returned {type(learned).__name__}, expected StepOutput")

        summed = {}
        if self._layouts and learned.layouts:
            summed = self._layouts.summed(assembled, learned.layouts)

        return Gradients(
            {table: gradients for table, (_, gradients) in summed.items()},
            learned.variables,
            learned.loss,
            metrics={**figures, **learned.metrics},
            summaries=learned.summaries,
            trained_ids={table: ids for table, (ids, _) in summed.items()},
        )

    def evaluate(self, read: Read) -> dict[str, float]:
        """AUC, log-loss and calibration of what `read` gives for Mode.EVAL; none without it.

        None either if there is no `predict`: what was trained is not to fail for that.
        """
        if not self._predicts():
            logger.warning("%s has no predict(): it is not evaluated", type(self).__name__)
            return {}

        figures = Evaluation()
        for batch, logits in self._scored(read, Mode.EVAL):
            labels = np.asarray(batch.labels)

            if np.isnan(labels).any():
                raise BadData(f"{type(self).__name__}: held-out examples without a label")

            _check_labels(labels, f"{type(self).__name__}, held-out examples")
            figures.add(labels, logits)

        return figures.figures() if figures.num_examples else {}

    def predictions(self, read: Read, fields: Sequence[str]) -> Iterator[Predicted]:
        """What the model says of what `read` gives for Mode.PREDICT. Batches bring their fields."""
        for batch, logits in self._scored(read, Mode.PREDICT):
            yield Predicted(logits, batch.labels, batch.fields)

    # ------------------------------------------------------------------ what replicas call

    @property
    def served_features(self) -> Sequence[str]:
        return [feature.name for feature in self.features]

    @property
    def served_dense(self) -> Sequence[str]:
        """None: dense columns have no names here, so a request gives them as a matrix."""
        return ()

    def served_layouts(
        self, features: Mapping[str, FeatureValues], read: ReadModel
    ) -> LayoutArrays:
        """The arrays of the layouts, by name."""
        if self._layouts is None:
            raise InvalidRequest(f"{type(self).__name__} has no features")

        located = self._layouts.locate(_ids_of(features))
        rows, _ = read(located.ids, ())
        return self._layouts.assemble(located, rows, {}).outputs

    def served_logits(self, examples: ServedExamples, read: ReadModel) -> F32:
        """What `predict` says; labels of the batch are zeros, and it has no fields."""
        if examples.dense_columns:
            raise InvalidRequest(
                f"{type(self).__name__} does not name its dense columns: give dense as a matrix, "
                "[examples, columns]"
            )

        batch = self._requested(examples)
        names = [variable.name for variable in self.variables]
        rows, variables = read(self.ids(batch), names)
        return self._logits(batch, rows, variables)

    def _requested(self, examples: ServedExamples) -> LocatedBatch:
        ids = _ids_of(examples.features)
        located = self._layouts.locate(ids) if self._layouts else None
        num_dense = None if examples.dense is None else len(examples.dense)
        size = located.size if located else num_dense or 0

        if num_dense not in (None, size):
            raise ShapeMismatch(
                f"dense has {num_dense} rows, and the features have {size} examples"
            )

        labels = np.zeros(size, np.float32)
        return LocatedBatch(FeatureBatch(ids, labels, examples.dense), located, "the request")

    # ------------------------------------------------------------------ inside

    def _scored(self, read: Read, mode: Mode) -> Iterator[tuple[FeatureBatch, F32]]:
        """Batches with their logits, by the rows and variables of a model."""
        names = [variable.name for variable in self.variables]
        reading = self.input(mode, 0, 1)

        try:
            for drawn in reading.batches(b""):
                located = drawn.batch
                rows, variables = read(self.ids(located), names)
                yield located.batch, self._logits(located, rows, variables)
        finally:
            reading.close()

    def _logits(self, located: LocatedBatch, rows: RowsByTable, variables: Variables) -> F32:
        """What `predict` says, one for each example."""
        arrays, _ = self._arrays(located, rows, variables)
        return self._predicted(located.batch, arrays, variables)

    def _predicted(self, batch: FeatureBatch, arrays: ArrayByLayout, variables: Variables) -> F32:
        logits = np.asarray(self.predict(batch, arrays, variables))
        if logits.shape != (len(batch),):
            raise InvalidRequest(
                f"predict() returned {list(logits.shape)}, expected one logit for each of "
                f"{len(batch)} examples"
            )

        return logits

    def _figures_before(
        self, batch: FeatureBatch, arrays: ArrayByLayout, variables: Variables
    ) -> dict[str, float]:
        """Of examples that the model has not been trained on yet."""
        logits = self._predicted(batch, arrays, variables)
        figures = self._online.add(np.asarray(batch.labels), logits)
        return {"auc": figures["auc"], "calibration": figures["calibration"]}

    @cached_property
    def _online(self) -> OnlineEvaluation:
        return OnlineEvaluation()

    @cached_property
    def _layouts(self) -> FeatureLayouts | None:
        return FeatureLayouts(self.features, self.layouts) if self.features else None

    def _with_ids(self, drawn: InputBatch[FeatureBatch]) -> InputBatch[LocatedBatch]:
        """The rows of a batch are found on the thread that reads."""
        located = self._located(drawn.batch, drawn.where)
        return InputBatch(located, drawn.cursor, drawn.req_time_s, drawn.where)

    def _located(self, batch: FeatureBatch, where: str) -> LocatedBatch:
        """A batch with the distinct ids of its features."""
        located = None
        if self._layouts:
            try:
                located = self._layouts.locate(batch.ids)
            except InvalidRequest as error:  # such as row splits that fall
                raise type(error)(f"{where}: {error}") from error

            if located.size != len(batch):
                raise BadData(
                    f"{where}: {len(batch)} labels for {located.size} examples of the features"
                )

        return LocatedBatch(batch, located, where)

    def _arrays(
        self, batch: LocatedBatch, rows: RowsByTable, variables: Variables
    ) -> tuple[dict[str, Any], Any]:
        """(the array of each layout, what leads back from them to the rows)."""
        if not self._layouts or batch.located is None:
            return {}, None

        assembled = self._layouts.assemble(batch.located, rows, variables)
        arrays: dict[str, Any] = {}
        for name, parts in assembled.outputs.items():
            arrays[name] = parts if len(parts) > 1 else parts[0]

        return arrays, assembled

    def _predicts(self) -> bool:
        return getattr(self.predict, "__func__", None) is not FeatureTask.predict

    def _lacks(self, what: str) -> Exception:
        return InvalidRequest(f"{type(self).__name__} has no {what}: write it")


def _ids_of(features: Mapping[str, FeatureValues]) -> dict[str, Ragged]:
    return {name: values.as_ids(name) for name, values in features.items()}


def _check_labels(labels: F32, where: str) -> None:
    values = np.asarray(labels)
    if not values.size:
        return

    is_between = (values >= 0.0) & (values <= 1.0)  # NaN is not
    if not is_between.all():
        wrong = values[~is_between]
        all_labels = counted(values.size, "label")
        are = "is" if wrong.size == 1 else "are"
        raise BadData(
            f"{where}: {wrong.size} of {all_labels} {are} outside 0..1, "
            f"the first is {wrong.flat[0]}"
        )

"""One step of a model on the rows of a batch: forward, the logistic loss, and back.

located ids, rows --assemble--> layouts --forward--> logits --backward--> gradients of rows
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from megalith.client import FeatureLayouts, Located
from megalith.tasks.models.model import F32, Inputs, Model
from megalith.tasks.models.parts import Parts
from megalith.worker.task import RowsByTable, Variables


@dataclass(frozen=True, slots=True)
class StepGradients:
    """What a step has found.

    Gradients of rows are of the sum of the losses, those of variables of their mean. A row is
    touched by few examples of a batch, so its step must not shrink with the batch size; a variable
    is touched by all of them.
    """

    logits: F32
    rows: dict[str, F32]
    variables: dict[str, F32]


class ModelStep:
    """A model and the features that it sees. For one caller at a time.

    With `num_threads` above 1, each thread computes a part of the examples.
    """

    def __init__(self, model: Model, layouts: FeatureLayouts, num_threads: int = 1) -> None:
        self._model = model
        self._layouts = layouts
        self._parts = Parts(num_threads)

    def predict(self, located: Located, rows: RowsByTable, variables: Variables, dense: F32) -> F32:
        """Logits, one for each example."""

        def part(start: int, stop: int) -> F32:
            examples = located.examples(start, stop)
            batch = self._layouts.assemble(examples, rows, variables)
            inputs = _inputs(batch.outputs, dense[start:stop])

            logits, _ = self._model.forward(inputs, variables)
            return logits

        parts = self._parts.compute(located.size, part)
        return np.concatenate(parts)

    def gradients(
        self, located: Located, rows: RowsByTable, variables: Variables, dense: F32, labels: F32
    ) -> StepGradients:
        """One pass forward and back. Logits that are not finite give gradients that are not."""

        def part(start: int, stop: int) -> StepGradients:
            examples = located.examples(start, stop)
            batch = self._layouts.assemble(examples, rows, variables)
            inputs = _inputs(batch.outputs, dense[start:stop])

            with np.errstate(over="ignore", invalid="ignore"):
                logits, backward = self._model.forward(inputs, variables)
                probability = sigmoid(logits)
                wrong_by = probability - labels[start:stop]

                found = backward(wrong_by)
                by_table = self._layouts.row_gradients(batch, found.layouts)

            return StepGradients(logits, by_table, found.variables)

        first, *others = self._parts.compute(located.size, part)
        logits = [first.logits]

        for other in others:
            _add(first.rows, other.rows)
            _add(first.variables, other.variables)
            logits.append(other.logits)

        size = np.float32(labels.size)
        means = {}
        for name, gradient in first.variables.items():
            means[name] = gradient / size

        all_logits = np.concatenate(logits)
        return StepGradients(all_logits, first.rows, means)


def sigmoid(values: F32) -> F32:
    halved = 0.5 * values
    result: F32 = 0.5 + 0.5 * np.tanh(halved)
    return result


def _inputs(outputs: Mapping[str, tuple[F32, ...]], dense: F32) -> Inputs:
    layouts = {}
    for name, arrays in outputs.items():
        layouts[name] = arrays[0]

    return Inputs(layouts, dense)


def _add(sums: dict[str, F32], more: Mapping[str, F32]) -> None:
    for name, gradient in more.items():
        sums[name] += gradient

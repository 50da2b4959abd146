"""A small task of features: which of 300 users likes which of 100 films, made up by the seed."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

import megalith.client as mg
from megalith.tasks.api import FeatureBatch, FeatureTask, StepOutput

RATE = mg.Adagrad(0.05)
SLICES = (
    mg.Slice("bias", 1, mg.Zeros(), RATE),
    mg.Slice("vec", 4, mg.RandomUniform(-0.1, 0.1), RATE),
)


def drawn(seed, number, size):
    rng = np.random.default_rng([seed, number])
    user = rng.integers(300, size=size)
    film = rng.integers(100, size=size)
    taste = np.random.default_rng(7).normal(size=(400, 3))
    logit = 0.3 + (taste[user] * taste[300 + film]).sum(1)
    liked = rng.random(size) < 1 / (1 + np.exp(-logit))
    return FeatureBatch(
        {"user": user, "film": film}, liked.astype(np.float32), fields={"user": user}
    )


class LikedTask(FeatureTask):
    features = (mg.Feature("user", SLICES), mg.Feature("film", SLICES))
    layouts: ClassVar = {
        "bias": mg.Layout.add_n("user.bias", "film.bias"),
        "vec": mg.Layout.stack("user.vec", "film.vec"),
    }
    variables = (mg.VariableConfig("bias", np.zeros(1, np.float32), mg.Adagrad(0.05)),)

    def __init__(self, *, batch_size=64, num_examples=6400, seed=1, **options):
        self._batch_size = batch_size
        self._num_examples = num_examples
        self._seed = seed
        self.options = options

    def num_batches(self):
        return self._num_examples // self._batch_size

    def batch(self, number):
        return drawn(self._seed, number, self._batch_size)

    def held_out(self):
        return [drawn(self._seed, 10_000_000 + number, 500) for number in range(4)]

    def step(self, batch, layouts, variables):
        logit = self.predict(batch, layouts, variables)
        error = (1 / (1 + np.exp(-logit)) - batch.labels)[:, np.newaxis]
        other = layouts["vec"][:, ::-1]
        return StepOutput(
            loss=float(np.mean(np.logaddexp(0, logit) - batch.labels * logit)),
            layouts={"bias": error, "vec": error[:, :, np.newaxis] * other},
            variables={"bias": error.mean(0)},
            metrics={"mean_label": float(batch.labels.mean())},
        )

    def predict(self, batch, layouts, variables):
        product = layouts["vec"].prod(1).sum(1)
        return variables["bias"] + layouts["bias"][:, 0] + product


class NotedLosses(LikedTask):
    """Writes the loss of each step to a file, a line each."""

    def step(self, batch, layouts, variables):
        learned = super().step(batch, layouts, variables)
        with open(self.options["losses"], "a") as file:
            file.write(f"{learned.loss!r}\n")
        return learned


class SummarizedTask(LikedTask):
    """Shows, in TensorBoard, weights of a search and how much each feature contributes."""

    def step(self, batch, layouts, variables):
        learned = super().step(batch, layouts, variables)

        def summaries():
            inputs = layouts["vec"].reshape(len(batch), -1)
            weight = np.ones((8, 2), np.float32)
            names = ["user", "film"]
            return [
                mg.nas_summary(np.float32([0.5, 0.8]), names, [4, 4]),
                mg.feature_insight_summary(
                    inputs, names, [4, 4], weight=weight, label=batch.labels
                ),
            ]

        return replace(learned, summaries=summaries)

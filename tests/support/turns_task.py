"""A task of two features in one table, of which one has no gradient in most batches."""

from typing import ClassVar

import numpy as np

import megalith.client as mg
from megalith.tasks.api import FeatureBatch, FeatureTask, StepOutput

TABLE = "shared"
MOMENTUM = 0.5
RATE = 0.125
DECAY = 0.25
SLICES = (
    mg.Slice("vec", 2, mg.Zeros(), mg.Momentum(RATE, weight_decay_factor=DECAY, momentum=MOMENTUM)),
)


def trains_films(number):
    return number % 3 == 1


class TakesTurns(FeatureTask):
    """All gradients are 1. Films have none but in every third batch; half of them are users too.

    A push of zeros would not leave them alone: there is a momentum and a decay. `found` are the
    rows of all ids at the end.
    """

    features = (
        mg.Feature("user", SLICES, table=TABLE),
        mg.Feature("film", SLICES, table=TABLE),
    )
    layouts: ClassVar = {"user": mg.Layout.concat("user"), "film": mg.Layout.concat("film")}

    def __init__(self, *, batch_size=64, num_examples=64 * 12, seed=1, num_ids=500):
        self._batch_size = batch_size
        self._num_examples = num_examples
        self._seed = seed
        self._num_ids = num_ids
        self.found = None

    def num_batches(self):
        return self._num_examples // self._batch_size

    def batch(self, number):
        rng = np.random.default_rng([self._seed, number])
        user = rng.integers(self._num_ids, size=self._batch_size)
        film = rng.integers(self._num_ids, size=self._batch_size) + self._num_ids // 2
        labels = np.full(self._batch_size, number % 2, np.float32)
        number_of_each = np.full(self._batch_size, number)
        return FeatureBatch({"user": user, "film": film}, labels, fields={"number": number_of_each})

    def step(self, batch, layouts, variables):
        trained = ["user"]
        if trains_films(batch.fields["number"][0]):
            trained.append("film")

        return StepOutput(0.5, {name: np.ones_like(layouts[name]) for name in trained})

    def evaluate(self, read):
        rows, _ = read({TABLE: np.arange(2 * self._num_ids)}, [])
        self.found = rows[TABLE]
        return {}

    def expected(self, num_ranks=1):
        """(the weights of all ids, which of them have a row), by dense arrays.

        Each step trains the batches of so many ranks.
        """
        num_ids = 2 * self._num_ids
        weights = np.zeros(num_ids, np.float64)
        momentum = np.zeros(num_ids, np.float64)
        has_row = np.zeros(num_ids, bool)

        for first in range(0, self.num_batches(), num_ranks):
            uses = np.zeros(num_ids, np.int64)
            for number in range(first, first + num_ranks):
                ids = self.batch(number).ids
                uses += np.bincount(ids["user"], minlength=num_ids)
                if trains_films(number):
                    uses += np.bincount(ids["film"], minlength=num_ids)

            is_used = uses > 0
            has_row |= is_used
            moved = MOMENTUM * momentum - RATE * (uses + DECAY * weights)
            momentum[is_used] = moved[is_used]
            weights[is_used] += moved[is_used]

        return weights, has_row

    def check(self, found, num_rows, num_ranks=1):
        """The rows of all ids and the size of the table are what they have to be."""
        weights, has_row = self.expected(num_ranks)
        films = np.concatenate([self.batch(number).ids["film"] for number in range(3)])
        assert not has_row[films].all()  # there was something to leave alone
        np.testing.assert_allclose(found, np.stack([weights] * 2, axis=1), rtol=1e-5, atol=1e-6)
        assert num_rows == has_row.sum()

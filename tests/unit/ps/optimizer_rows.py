"""Rows of one segment, small enough to look at: what a table does around an optimizer, without the table."""

import numpy as np

from megalith.ps.optimizer import row_optimizer


class Rows:
    """`count` rows of [padding | weights | padding | state]: odd offsets, so that a kernel mixing them up shows."""

    def __init__(self, config, dim, count=1, weights=0.0):
        self.optimizer = row_optimizer(config, dim)
        self.dim, self.w, self.s = dim, 3, 3 + dim + 2
        self.width = self.s + self.optimizer.state_width + 1
        self.values = np.full(count * self.width, 777.0, np.float32)
        self.table = self.values.reshape(count, self.width)
        self.weights = weights
        self.state[:] = self.optimizer.initial_state

    @property
    def weights(self):
        return self.table[:, self.w : self.w + self.dim]

    @weights.setter
    def weights(self, weights):
        self.weights[:] = weights

    @property
    def state(self):
        return self.table[:, self.s : self.s + self.optimizer.state_width]

    def dump(self):
        return self.optimizer.dump(self.state)

    def load(self, dump):
        self.state[:] = self.optimizer.load(dump, len(self.table))

    def padding(self):
        return np.concatenate([self.table[:, :3], self.table[:, self.s - 2 : self.s], self.table[:, -1:]], axis=1)

    def apply(self, grads, lr=0.01, step=0, rows=None, pulled=None):
        """One call; `grads` is [n, dim] or one gradient. The segment sits at column 2 of a wider array."""
        grads = np.atleast_2d(np.asarray(grads, np.float32))
        rows = np.arange(len(grads)) if rows is None else np.asarray(rows, np.int64)
        starts = np.where(rows < 0, -1, rows * self.width).astype(np.int64)
        wide = np.full((len(grads), self.dim + 3), np.nan, np.float32)
        wide[:, 2 : 2 + self.dim] = grads
        if self.optimizer.takes_pulled:
            old = np.full_like(wide, np.nan)
            old[:, 2 : 2 + self.dim] = pulled
            wide = np.concatenate([wide, old], axis=1)
        self.optimizer.apply(
            self.values, starts, self.w, self.s, wide, 2, self.dim, np.float32(lr), self.optimizer.params, step
        )
        return self.weights


def close(actual, expected, atol=1e-6):
    np.testing.assert_allclose(np.ravel(actual), np.ravel(expected), rtol=0, atol=atol)

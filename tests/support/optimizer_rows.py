"""Rows of one segment, small enough to look at: what a table does around an optimizer, without the
table."""

import numba
import numpy as np
from hypothesis import strategies as st

from megalith.engine.kernels.optimizers._rows import STEP_SHIFT
from megalith.engine.segments.optimizer import row_optimizer
from megalith.schema.optimizers import BatchSoftmax
from support.twins import optimizers

COUNT = 4
SIGNATURE = "void(f4[::1], i8[::1], i8, i8, f4[:, ::1], i8, i8, f4, f4[::1], i8)"


def state_by_name(optimizer, state):
    """The state slots of rows [n, state_width] by field: [n, width] floats, or [n] integers for a
    step."""
    parts = {
        field.name: state[:, field.offset : field.offset + field.width].copy()
        for field in optimizer.fields
    }
    steps = [field.name for field in optimizer.fields if field.is_step]
    return parts | {name: parts[name].astype(np.int64) @ [1 << STEP_SHIFT, 1] for name in steps}


class Rows:
    """`count` rows of [padding | weights | padding | state]: odd offsets, so that a kernel mixing
    them up shows."""

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
        return state_by_name(self.optimizer, self.state)

    def padding(self):
        return np.concatenate(
            [self.table[:, :3], self.table[:, self.s - 2 : self.s], self.table[:, -1:]], axis=1
        )

    def apply(self, grads, lr=0.01, step=0, rows=None, pulled=None):
        """One call; `grads` is [n, dim] or one gradient.

        The segment sits at column 2 of a wider array.
        """
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
            self.values, starts, self.w, self.s, wide, 2, self.dim, np.float32(lr), step
        )
        return self.weights


def close(actual, expected, atol=1e-6):
    np.testing.assert_allclose(np.ravel(actual), np.ravel(expected), rtol=0, atol=atol)


@st.composite
def calls(draw):
    """A width, the row numbers (repeated and -1 included) of two successive calls, and a seed for
    their gradients."""
    rows = st.lists(st.integers(-1, COUNT - 1), max_size=12)
    return draw(st.integers(1, 19)), [draw(rows), draw(rows)], draw(st.integers(0, 2**32 - 1))


def compare_with_twin(config, call):
    dim, batches, seed = call
    dim = 1 if isinstance(config, BatchSoftmax) else dim
    rng = np.random.default_rng(seed)
    rows = Rows(config, dim, count=COUNT, weights=rng.uniform(-0.5, 0.5, (COUNT, dim)))
    weights, states, padding = rows.weights.copy(), rows.dump(), rows.padding().copy()
    for step, batch in enumerate(batches, start=3):
        grads = rng.uniform(-1, 1, (len(batch), dim)).astype(np.float32)
        weights, states = optimizers.run(config, weights, states, batch, grads, 0.05, step)
        rows.apply(grads.reshape(-1, dim), lr=0.05, step=step, rows=batch)
    np.testing.assert_allclose(rows.weights, weights, rtol=2e-5, atol=2e-6)
    for name, values in rows.dump().items():
        np.testing.assert_allclose(values, states[name], rtol=2e-5, atol=2e-5, err_msg=name)
    np.testing.assert_array_equal(rows.padding(), padding)


def assert_vectorised(config, instructions):
    """Nothing else shows when a constant turns an expression into float64 or a length makes the
    loop unroll."""
    (stage,) = row_optimizer(config, 16).stages
    compiled = numba.njit(SIGNATURE, nogil=True, error_model="numpy", fastmath={"contract"})(
        stage.apply.py_func
    )
    assembly = compiled.inspect_asm(compiled.signatures[0])
    assert [instruction for instruction in instructions if instruction not in assembly] == []
    assert config.name.startswith("rmsprop") or "vcvtss2sd" not in assembly

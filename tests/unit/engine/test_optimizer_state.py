"""What a row keeps for an optimizer: widths, starts and names, as checkpoints see them."""

import numpy as np
import pytest

from megalith.engine.kernels.optimizers._rows import STEP_SHIFT
from megalith.engine.segments.optimizer import row_optimizer
from megalith.engine.segments.optimizer_state import STEP_LIMIT, pack_steps
from megalith.errors import InvalidRequest, InvalidSetting
from megalith.schema import optimizers as o
from support.optimizer_rows import Rows, state_by_name

D = 5
LAYOUT = [
    (o.Sgd(), 0, []),
    (o.Adagrad(), D, ["norm"]),
    (o.DynamicWdAdagrad(), D + 2, ["norm", "last_update_step"]),
    (o.Ftrl(), 2 * D, ["norm", "zero"]),
    (o.GroupFtrl(), 2 * D, ["norm", "zero"]),
    (o.GroupAdagrad(), 1, ["grad_square_sum"]),
    (o.Adadelta(), 2 * D, ["accum", "accum_update"]),
    (o.Adam(), 2 * D + 2, ["m", "v", "beta1_power", "beta2_power"]),
    (o.Amsgrad(), 3 * D + 2, ["m", "v", "vhat", "beta1_power", "beta2_power"]),
    (o.Momentum(), D, ["n"]),
    (o.MovingAverage(), 0, []),
    (o.Rmsprop(), D, ["n"]),
    (o.RmspropV2(), D, ["n"]),
    (o.Dc(o.Momentum()), D, ["n"]),
    (o.StochasticRoundingFloat16(o.Adadelta()), 2 * D, ["accum", "accum_update"]),
]


@pytest.mark.parametrize(
    ("config", "width", "names"), LAYOUT, ids=lambda value: getattr(value, "name", "")
)
def test_the_state_has_its_width_and_names(config, width, names):
    optimizer = row_optimizer(config, D)
    assert optimizer.state_width == len(optimizer.initial_state) == width
    assert [field.name for field in optimizer.fields] == names
    assert optimizer.initial_state.dtype == np.float32
    assert all(stage.params.dtype == np.float32 for stage in optimizer.stages)


@pytest.mark.parametrize(
    ("config", "initial"),
    [
        (o.Ftrl(initial_accumulator_value=0.25), [0.25] * D + [0] * D),
        (o.GroupAdagrad(), np.float32([0.1])),
        (o.Adam(), np.float32([0] * 2 * D + [0.9, 0.99])),
        (o.Amsgrad(), np.float32([0] * 3 * D + [0.9, 0.99])),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_state_starts_where_the_settings_say(config, initial):
    np.testing.assert_array_equal(row_optimizer(config, D).initial_state, initial)


def test_steps_start_as_never_or_zero():
    dynamic, softmax = row_optimizer(o.DynamicWdAdagrad(), D), row_optimizer(o.BatchSoftmax(), 1)
    assert state_by_name(dynamic, dynamic.initial_state[None])["last_update_step"] == [-1]
    assert state_by_name(softmax, softmax.initial_state[None])["last_step"] == [0]


def test_steps_survive_as_finite_float32():
    steps = np.array([-1, 0, 1, 2**24 - 1, 2**24, 2**31, 2139095041, STEP_LIMIT - 1], np.int64)
    packed = pack_steps(steps)
    assert packed.dtype == np.float32
    assert np.isfinite(packed).all()
    np.testing.assert_array_equal(packed.astype(np.int64) @ [1 << STEP_SHIFT, 1], steps)
    for bad in (-2, STEP_LIMIT):
        with pytest.raises(InvalidRequest, match=str(bad)):
            pack_steps(np.array([bad], np.int64))


@pytest.mark.parametrize(
    ("config", "dim", "message"),
    [
        (o.BatchSoftmax(), 2, "batch_softmax: the segment has 2 floats"),
        (o.Adam(), 0, "adam: a segment of 0 floats"),
        (
            o.StochasticRoundingFloat16(o.BatchSoftmax()),
            3,
            "batch_softmax: the segment has 3 floats",
        ),
    ],
)
def test_widths_that_cannot_be(config, dim, message):
    with pytest.raises(InvalidSetting, match=message):
        row_optimizer(config, dim)


@pytest.mark.parametrize("step", [-1, STEP_LIMIT])
def test_a_step_that_rows_cannot_keep_is_refused_and_changes_nothing(step):
    rows = Rows(o.BatchSoftmax(), 1)
    before = rows.values.copy()
    with pytest.raises(InvalidRequest, match=f"step {step} is outside"):
        rows.apply([1], step=step)
    np.testing.assert_array_equal(rows.values, before)

"""Every optimizer kernel against its naive twin: empty, one row, duplicates, skipped positions, any width."""

import platform

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.ps.optimizer import row_optimizer
from megalith.wire import optimizers as o
from unit.ps import reference_optimizers
from unit.ps.optimizer_rows import Rows

CONFIGS = {
    "dynamic_wd_adagrad": o.DynamicWdAdagrad(weight_decay_factor=0.1),
    "dynamic_wd_adagrad decoupled, dynamic": o.DynamicWdAdagrad(
        weight_decay_factor=0.1, decouple_weight_decay=True, enable_dynamic_wd=True, dynamic_wd_temperature=2.0
    ),
    "dynamic_wd_adagrad flipped": o.DynamicWdAdagrad(
        weight_decay_factor=0.1, enable_dynamic_wd=True, flip_direction=True
    ),
    "ftrl": o.Ftrl(),
    "ftrl regularized": o.Ftrl(beta=1.0, l1_regularization_strength=0.3, l2_regularization_strength=0.5),
    "ftrl sign bit": o.Ftrl(l1_regularization_strength=0.3, sign_bit_l1=True),
    "group_ftrl": o.GroupFtrl(l1_regularization_strength=0.7, l2_regularization_strength=0.5),
    "group_adagrad": o.GroupAdagrad(beta=1.0, l2_regularization_strength=0.7, weight_decay_factor=0.1),
    "adadelta": o.Adadelta(weight_decay_factor=0.1),
    "adam": o.Adam(weight_decay_factor=0.1),
    "adam nesterov": o.Adam(use_nesterov=True),
    "amsgrad": o.Amsgrad(weight_decay_factor=0.1),
    "amsgrad nesterov": o.Amsgrad(use_nesterov=True),
    "momentum": o.Momentum(weight_decay_factor=0.1),
    "momentum nesterov": o.Momentum(use_nesterov=True),
    "moving_average": o.MovingAverage(),
    "batch_softmax": o.BatchSoftmax(),
    "rmsprop": o.Rmsprop(weight_decay_factor=0.1),
    "rmspropv2": o.RmspropV2(weight_decay_factor=0.1),
}
COUNT = 4


@st.composite
def calls(draw):
    """Row numbers (repeated and -1 included), a width and a seed for the gradients of two successive calls."""
    dim = draw(st.integers(1, 19))
    rows = st.lists(st.integers(-1, COUNT - 1), max_size=12)
    return dim, [draw(rows), draw(rows)], draw(st.integers(0, 2**32 - 1))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@given(call=calls())
@settings(max_examples=40, deadline=None)
def test_the_kernel_does_what_its_twin_does(config, call):
    dim, batches, seed = call
    dim = 1 if isinstance(config, o.BatchSoftmax) else dim
    rng = np.random.default_rng(seed)
    rows = Rows(config, dim, count=COUNT, weights=rng.uniform(-0.5, 0.5, (COUNT, dim)))
    weights, states, padding = rows.weights.copy(), rows.dump(), rows.padding().copy()
    for step, batch in enumerate(batches, start=3):
        grads = rng.uniform(-1, 1, (len(batch), dim)).astype(np.float32)
        weights, states = reference_optimizers.run(config, weights, states, batch, grads, 0.05, step)
        rows.apply(grads.reshape(-1, dim), lr=0.05, step=step, rows=batch)
    np.testing.assert_allclose(rows.weights, weights, rtol=2e-5, atol=2e-6)
    for name, values in rows.dump().items():
        np.testing.assert_allclose(values, states[name], rtol=2e-5, atol=2e-5, err_msg=name)
    np.testing.assert_array_equal(rows.padding(), padding)


VECTORISED = {
    "dynamic_wd_adagrad": ("vsqrtps", "vdivps"),
    "ftrl": ("vsqrtps", "vdivps"),
    "group_ftrl": ("vsqrtps", "vdivps"),
    "adadelta": ("vsqrtps", "vdivps"),
    "adam": ("vsqrtps", "vdivps"),
    "amsgrad": ("vsqrtps", "vdivps"),
    "momentum": ("vmulps",),
    "moving_average": ("vmulps",),
    "rmsprop": ("vsqrtps", "vdivpd"),
    "rmspropv2": ("vsqrtps", "vdivpd"),
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 instructions")
@pytest.mark.parametrize(("name", "instructions"), VECTORISED.items(), ids=VECTORISED.keys())
def test_the_loop_over_a_segment_is_vectorised(name, instructions):
    """Nothing else shows when a constant turns an expression into float64 or a length makes the loop unroll."""
    apply = row_optimizer(o.optimizer_named(name), 16).apply
    signature = "void(f4[::1], i8[::1], i8, i8, f4[:, ::1], i8, i8, f4, f4[::1], i8)"
    compiled = numba.njit(signature, nogil=True, error_model="numpy", fastmath={"contract"})(apply.py_func)
    assembly = compiled.inspect_asm(compiled.signatures[0])
    assert [instruction for instruction in instructions if instruction not in assembly] == []
    assert name.startswith("rmsprop") or "vcvtss2sd" not in assembly

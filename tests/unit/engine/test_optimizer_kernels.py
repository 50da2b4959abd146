"""Every optimizer kernel against its naive twin: empty, one row, duplicates, skipped positions, any
width."""

import platform

import pytest
from hypothesis import given, settings

from megalith.schema import optimizers as o
from support.optimizer_rows import assert_vectorised, calls, compare_with_twin

CONFIGS = {
    "dynamic_wd_adagrad": o.DynamicWdAdagrad(weight_decay_factor=0.1),
    "dynamic_wd_adagrad decoupled, dynamic": o.DynamicWdAdagrad(
        weight_decay_factor=0.1,
        decouple_weight_decay=True,
        enable_dynamic_wd=True,
        dynamic_wd_temperature=2.0,
    ),
    "dynamic_wd_adagrad flipped": o.DynamicWdAdagrad(
        weight_decay_factor=0.1, enable_dynamic_wd=True, flip_direction=True
    ),
    "ftrl": o.Ftrl(),
    "ftrl regularized": o.Ftrl(
        beta=1.0, l1_regularization_strength=0.3, l2_regularization_strength=0.5
    ),
    "ftrl sign bit": o.Ftrl(l1_regularization_strength=0.3, sign_bit_l1=True),
    "group_ftrl": o.GroupFtrl(l1_regularization_strength=0.7, l2_regularization_strength=0.5),
    "group_adagrad": o.GroupAdagrad(
        beta=1.0, l2_regularization_strength=0.7, weight_decay_factor=0.1
    ),
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


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@given(call=calls())
@settings(max_examples=40)
def test_the_kernel_does_what_its_twin_does(config, call):
    compare_with_twin(config, call)


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
    assert_vectorised(o.Optimizer.kinds[name](), instructions)

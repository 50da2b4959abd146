from dataclasses import fields

import pytest

from megalith import client, schema
from megalith.errors import InvalidSetting
from megalith.schema import optimizers as o
from megalith.schema.checks import build_named

PROTO_DEFAULTS = {
    o.Sgd: {"learning_rate": 0.01},
    o.Adagrad: {"learning_rate": 0.001, "initial_accumulator_value": 0.1, "weight_decay_factor": 0},
    o.DynamicWdAdagrad: {
        "learning_rate": 0.001,
        "initial_accumulator_value": 0.1,
        "weight_decay_factor": 0,
        "decouple_weight_decay": False,
        "enable_dynamic_wd": False,
        "dynamic_wd_temperature": 1,
        "flip_direction": False,
    },
    o.Ftrl: {
        "learning_rate": 0.01,
        "beta": 0,
        "initial_accumulator_value": 0.1,
        "l1_regularization_strength": 0,
        "l2_regularization_strength": 0,
        "sign_bit_l1": False,
    },
    o.GroupFtrl: {
        "learning_rate": 0.01,
        "beta": 1,
        "initial_accumulator_value": 0,
        "l1_regularization_strength": 0,
        "l2_regularization_strength": 0,
    },
    o.GroupAdagrad: {
        "learning_rate": 0.01,
        "beta": 0,
        "initial_accumulator_value": 0.1,
        "l2_regularization_strength": 0,
        "weight_decay_factor": 0,
    },
    o.Adadelta: {
        "learning_rate": 0.01,
        "weight_decay_factor": 0,
        "averaging_ratio": 0.9,
        "epsilon": 0.01,
    },
    o.Adam: {
        "learning_rate": 0.01,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay_factor": 0,
        "use_nesterov": False,
        "epsilon": 0.01,
    },
    o.Amsgrad: {
        "learning_rate": 0.01,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay_factor": 0,
        "use_nesterov": False,
        "epsilon": 0.01,
    },
    o.Momentum: {
        "learning_rate": 0.01,
        "weight_decay_factor": 0,
        "use_nesterov": False,
        "momentum": 0.9,
    },
    o.MovingAverage: {"momentum": 0.9},
    o.BatchSoftmax: {"learning_rate": 0.1},
    o.Rmsprop: {"learning_rate": 0.01, "weight_decay_factor": 0, "momentum": 0.9},
    o.RmspropV2: {"learning_rate": 0.01, "weight_decay_factor": 0, "momentum": 0.9},
}


def named(name, **settings):
    return build_named("optimizer", o.Optimizer.kinds.values(), name, settings)


def test_every_optimizer_is_public_and_known_by_its_name():
    kinds = [getattr(o, each) for each in o.__all__]
    assert {kind.name: kind for kind in kinds} == o.Optimizer.kinds
    for each in o.__all__:
        assert getattr(schema, each) is getattr(client, each) is getattr(o, each)


@pytest.mark.parametrize(
    ("kind", "defaults"), PROTO_DEFAULTS.items(), ids=lambda value: getattr(value, "name", "")
)
def test_defaults_are_those_of_monolith(kind, defaults):
    warmup = {} if kind is o.MovingAverage else {"warmup_steps": 0}
    config = kind()
    assert {
        field.name: getattr(config, field.name) for field in fields(config)
    } == defaults | warmup
    assert named(kind.name) == config
    assert named(kind.name, **defaults) == config


@pytest.mark.parametrize("kind", PROTO_DEFAULTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e300, "0.1", None])
def test_every_number_must_be_a_finite_float32(kind, bad):
    for field in fields(kind):
        if field.type in ("float", float):
            with pytest.raises(
                InvalidSetting, match=f"^{kind.name}: {field.name} .* (is not|does not fit)"
            ):
                kind(**{field.name: bad})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: o.Adagrad(initial_accumulator_value=0),
            "adagrad: initial_accumulator_value 0 must be above 0",
        ),
        (
            lambda: o.Adagrad(weight_decay_factor=-1),
            "adagrad: weight_decay_factor -1 must be 0 or more",
        ),
        (lambda: o.Sgd(warmup_steps=-1), "sgd: warmup_steps -1 must be 0 or more"),
        (lambda: o.Sgd(warmup_steps=1.5), r"sgd: warmup_steps 1\.5 is not an integer"),
        (lambda: o.Adam(beta1=1.0), r"adam: beta1 1\.0 must be below 1"),
        (lambda: o.Adam(use_nesterov=1), "adam: use_nesterov 1 must be true or false"),
        (lambda: o.Adadelta(epsilon=0), "adadelta: epsilon 0 must be above 0"),
        (
            lambda: o.DynamicWdAdagrad(dynamic_wd_temperature=0),
            "dynamic_wd_temperature 0 must be above 0",
        ),
        (lambda: o.Dc(o.Dc(o.Sgd())), "dc: the base dc is itself a wrapper"),
        (lambda: o.Dc(o.Sgd(), -1), "dc: lambda_ -1 must be 0 or more"),
        (
            lambda: o.StochasticRoundingFloat16(o.StochasticRoundingFloat16(o.Sgd())),
            "the base is rounded already",
        ),
        (
            lambda: named("nonesuch"),
            "unknown optimizer 'nonesuch'; known are adadelta, adagrad, adam",
        ),
        (
            lambda: named("sgd", momentum=1),
            "sgd: unknown settings momentum; it has learning_rate",
        ),
        (
            lambda: named("adagrad", hessian_compression_times=1),
            "unknown settings hessian_compression",
        ),
        (lambda: named("dc"), "dc: .*base"),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(InvalidSetting, match=message):
        build()

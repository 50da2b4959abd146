import numpy as np
import pytest

from megalith.errors import InvalidSetting
from megalith.schema import (
    Adagrad,
    Adamom,
    Dc,
    Ftrl,
    LinearWarmup,
    PolynomialDecay,
    RandomUniform,
    Segment,
    Sgd,
    Shampoo,
    StochasticRoundingFloat16,
    TableConfig,
    VariableConfig,
)

BAD = {
    "zero dim": (lambda: Segment(0), "dim 0"),
    "huge dim": (lambda: Segment(65537), "dim 65537"),
    "dim of another type": (lambda: Segment(1.5), "dim 1.5"),
    "optimizer by name": (
        lambda: Segment(1, optimizer="adagrad"),
        "optimizer 'adagrad' is none of Sgd, Adagrad",
    ),
    "optimizer never called": (
        lambda: Segment(1, optimizer=Adagrad),
        "optimizer <class .*Adagrad'> is none of",
    ),
    "dense optimizer": (
        lambda: Segment(1, optimizer=Shampoo()),
        r"optimizer Shampoo\(.* is none of",
    ),
    "initializer by name": (
        lambda: Segment(1, "zeros"),
        "initializer 'zeros' is none of Zeros, Ones",
    ),
    "compressor by name": (
        lambda: Segment(1, compressor="fp16"),
        "compressor 'fp16' is none of Fp32",
    ),
    "schedule by number": (lambda: Segment(1, schedule=0.1), "schedule 0.1 is none of Constant"),
    "wrapped by name": (lambda: Dc("adam"), "dc: base 'adam' is none of"),
    "rounded by name": (lambda: StochasticRoundingFloat16("adam"), "base 'adam' is none of"),
    "one segment": (lambda: TableConfig("t", Segment(1)), "is not a tuple of segments"),
    "names for segments": (lambda: TableConfig("t", ("vec",)), "is not a tuple of segments"),
    "variable's schedule": (
        lambda: VariableConfig("v", np.zeros(2, np.float32), Sgd(), 0.1),
        "schedule 0.1 is none",
    ),
    "no segments": (lambda: TableConfig("t", ()), "no segments"),
    "no name": (lambda: TableConfig("", (Segment(1),)), "name is empty"),
    "negative rate": (lambda: Adagrad(-0.1), "learning_rate -0.1 must be 0 or more"),
    "negative dense rate": (lambda: Adamom(-0.1), "learning_rate -0.1 must be 0 or more"),
    "negative scheduled rate": (
        lambda: LinearWarmup(-0.1, 5),
        "learning_rate -0.1 must be 0 or more",
    ),
    "negative end rate": (
        lambda: PolynomialDecay(0.1, 5, -0.1),
        "end_learning_rate -0.1 must be 0 or more",
    ),
    "infinite rate": (lambda: Sgd(float("inf")), "not finite"),
    "zero accumulator": (lambda: Adagrad(initial_accumulator_value=0.0), "must be above 0"),
    "negative decay": (lambda: Adagrad(weight_decay_factor=-1.0), "must be 0 or more"),
    "range out of order": (lambda: RandomUniform(1.0, 0.0), "in order"),
    "slot too large": (
        lambda: TableConfig("t", (Segment(1),), expire_days_by_slot={40000: 1}),
        "slot 40000",
    ),
    "double variable": (
        lambda: VariableConfig("v", np.zeros(2)),
        "not an array of float32 or int64",
    ),
    "gradients of integers": (
        lambda: VariableConfig("v", np.zeros(2, np.int64), Sgd()),
        "only float32",
    ),
    "infinite variable": (
        lambda: VariableConfig("v", np.full(2, np.inf, np.float32)),
        "not finite",
    ),
    "variable with ftrl": (
        lambda: VariableConfig("v", np.zeros(2, np.float32), Ftrl()),
        "Ftrl moves rows of a table",
    ),
    "nameless variable": (lambda: VariableConfig("", np.zeros(2, np.float32)), "name is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_name_the_value(name):
    make, message = BAD[name]
    with pytest.raises(InvalidSetting, match=message):
        make()


def test_segments_in_a_list_are_the_same_table():
    assert TableConfig("t", [Segment(1)]) == TableConfig("t", (Segment(1),))

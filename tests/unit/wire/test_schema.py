import numpy as np
import pytest

from megalith.wire.errors import InvalidSetting
from megalith.wire.schema import Adagrad, Ftrl, RandomUniform, Segment, Sgd, TableConfig, VariableConfig

BAD = {
    "zero dim": (lambda: Segment(0), "dim 0"),
    "huge dim": (lambda: Segment(65537), "dim 65537"),
    "no segments": (lambda: TableConfig("t", ()), "no segments"),
    "no name": (lambda: TableConfig("", (Segment(1),)), "name is empty"),
    "infinite rate": (lambda: Sgd(float("inf")), "not finite"),
    "zero accumulator": (lambda: Adagrad(initial_accumulator_value=0.0), "must be above 0"),
    "negative decay": (lambda: Adagrad(weight_decay_factor=-1.0), "must be 0 or more"),
    "range out of order": (lambda: RandomUniform(1.0, 0.0), "in order"),
    "slot too large": (lambda: TableConfig("t", (Segment(1),), expire_days_by_slot={40000: 1}), "slot 40000"),
    "double variable": (lambda: VariableConfig("v", np.zeros(2)), "not an array of float32 or int64"),
    "gradients of integers": (lambda: VariableConfig("v", np.zeros(2, np.int64), Sgd()), "only float32"),
    "infinite variable": (lambda: VariableConfig("v", np.full(2, np.inf, np.float32)), "not finite"),
    "variable with ftrl": (lambda: VariableConfig("v", np.zeros(2, np.float32), Ftrl()), "Ftrl moves rows of a table"),
    "nameless variable": (lambda: VariableConfig("", np.zeros(2, np.float32)), "name is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_name_the_value(name):
    make, message = BAD[name]
    with pytest.raises(InvalidSetting, match=message):
        make()

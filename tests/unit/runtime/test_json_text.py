import json
from dataclasses import dataclass

import numpy as np

from megalith.runtime.json_text import json_text


@dataclass(frozen=True)
class Measured:
    name: str
    figures: dict[str, float]
    ends: tuple[float, ...] = ()


def test_numbers_that_json_does_not_know_are_null_at_any_depth():
    ends = (1.5, float("inf"), np.float64("nan"))
    value = {"all": [Measured("a", {"auc": float("nan"), "loss": 0.5}, ends)], "count": 3}

    def refused(name):
        raise AssertionError(name)

    assert json.loads(json_text(value), parse_constant=refused) == {
        "all": [{"name": "a", "figures": {"auc": None, "loss": 0.5}, "ends": [1.5, None, None]}],
        "count": 3,
    }

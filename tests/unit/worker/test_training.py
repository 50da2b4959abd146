"""What the chief creates when a ps was replaced."""

import numpy as np
import pytest

from megalith.wire.schema import Sgd, VariableConfig
from megalith.worker.training import begun_again

CONFIG = VariableConfig("w", np.zeros(2, np.float32), Sgd(0.5))


def test_a_variable_begins_again_with_the_value_that_was_last_read():
    again = begun_again(CONFIG, np.array([1, 2], np.float32))
    np.testing.assert_array_equal(again.initial, [1, 2])
    assert again.optimizer == CONFIG.optimizer


@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
def test_a_value_that_is_not_finite_does_not_end_the_chief_and_is_said_in_the_log(caplog, spoiled):
    last = np.array([1, spoiled], np.float32)
    assert begun_again(CONFIG, last) is CONFIG
    assert "variable=w" in caplog.text
    assert begun_again(CONFIG, None) is CONFIG

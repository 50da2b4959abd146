import numpy as np
import pytest

from megalith.errors import InvalidSetting
from megalith.schema import (
    Adam,
    Ftrl,
    PolynomialDecay,
    Segment,
    Sgd,
    TableConfig,
)


def test_every_segment_has_its_own_rate():
    table = TableConfig(
        "ads",
        (
            Segment(1, optimizer=Ftrl(0.5)),
            Segment(8, optimizer=Adam(0.1, warmup_steps=10)),
            Segment(8, optimizer=Sgd(123.0), schedule=PolynomialDecay(0.01, 10, 0.11)),
        ),
    )
    assert table.segments[1].schedule is None
    np.testing.assert_allclose(table.learning_rates(1), [0.5, 0.01, 0.02])
    np.testing.assert_allclose(table.learning_rates(10**6), [0.5, 0.1, 0.11])
    assert table.learning_rates(1).dtype == np.float32


@pytest.mark.parametrize("dim", [0, -1, 65537])
def test_a_segment_has_a_width(dim):
    with pytest.raises(InvalidSetting, match=f"dim {dim} is outside"):
        Segment(dim)

import numpy as np
import pytest

from megalith.wire import codec
from megalith.wire.errors import InvalidSetting
from megalith.wire.schema import (
    Adam,
    Fp16,
    Fp32,
    Ftrl,
    LinearWarmup,
    Ones,
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


def test_a_schedule_stays_with_the_worker():
    segment = Segment(4, optimizer=Sgd(0.1), schedule=LinearWarmup(0.1, 5))
    sent = codec.table_from_proto(codec.table_to_proto(TableConfig("ads", (segment,))))
    assert sent == TableConfig("ads", (Segment(4, optimizer=Sgd(sent.segments[0].optimizer.learning_rate)),))
    assert sent.segments[0].compressor == Fp32()


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (Segment(4, optimizer=Adam()), "optimizer adam does not travel"),
        (Segment(4, initializer=Ones()), "initializer ones does not travel"),
        (Segment(4, compressor=Fp16()), "compressor fp16 does not travel"),
    ],
)
def test_what_the_messages_cannot_say_is_refused_rather_than_dropped(segment, message):
    with pytest.raises(InvalidSetting, match=message):
        codec.table_to_proto(TableConfig("ads", (segment,)))


@pytest.mark.parametrize("dim", [0, -1, 65537])
def test_a_segment_has_a_width(dim):
    with pytest.raises(InvalidSetting, match=f"dim {dim} is outside"):
        Segment(dim)

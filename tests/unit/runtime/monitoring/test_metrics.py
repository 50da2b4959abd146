import pytest
from prometheus_client import generate_latest

from megalith.errors import InvalidSetting
from megalith.runtime.monitoring.metrics import Metrics


def test_a_count_that_somebody_else_keeps_is_a_prometheus_counter():
    metrics, counts = Metrics(), iter([3, 5])
    metrics.counter("megalith_rows_created_total", "Rows ever made.", lambda: next(counts))
    page = generate_latest(metrics.registry).decode()
    assert "# TYPE megalith_rows_created_total counter" in page
    assert "megalith_rows_created_total 3.0" in page
    assert "megalith_rows_created_total 5.0" in generate_latest(metrics.registry).decode()


def test_a_counter_is_named_as_one():
    with pytest.raises(InvalidSetting, match="ends in _total"):
        Metrics().counter("megalith_rows_created", "Rows ever made.", lambda: 1)

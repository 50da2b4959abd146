from types import SimpleNamespace

import numpy as np
import pytest

from megalith.cli import demo
from megalith.wire.reports import ReplicaReport


@pytest.mark.parametrize(
    ("median_s", "slowest_s", "shown"), [(0.0, 0.0, ["-", "-"]), (0.25, 1.5, ["0.25s", "1.50s"])]
)
def test_a_freshness_that_nobody_has_measured_is_no_figure(median_s, slowest_s, shown):
    report = ReplicaReport(freshness_p50_s=median_s, freshness_p99_s=slowest_s)
    worker = SimpleNamespace(role="worker", metrics={"auc": 0.7}, examples=100)
    status = SimpleNamespace(members=[worker], replicas=[SimpleNamespace(report=report)])
    batch = SimpleNamespace(ids={"user": np.arange(3)}, dense=np.zeros((3, 4)))
    events = SimpleNamespace(num_written=100, last=batch)
    client = SimpleNamespace(predict=lambda features, dense: None)
    line = demo._line(status, events, client)
    cells = [
        line[at : at + demo._WIDTH].replace(" ", "") for at in range(0, len(line), demo._WIDTH)
    ]
    assert cells[4:6] == shown

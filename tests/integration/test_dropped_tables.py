"""Tables that a checkpoint has and the model has no longer, or with another layout."""

import json

import numpy as np
import pytest

from megalith.checkpoint.layout import manifest
from megalith.errors import TableConflict, UnknownTable
from megalith.schema import Adagrad, Segment, Sgd, TableConfig
from support.processes import run_cli
from support.servers import Servers

OLD, NEW = (TableConfig(name, (Segment(2, optimizer=Sgd(1.0)),)) for name in ("old", "new"))
NUM_ROWS = 300_000
IDS = np.random.default_rng(1).integers(0, 2**62, NUM_ROWS)


@pytest.fixture
def servers(tmp_path):
    """A job that goes on from a checkpoint of two tables, one of which its program creates."""
    with Servers(tmp_path, num_ps=2, num_workers=0) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(OLD, NEW)
        ids = IDS
        rows = np.ones((NUM_ROWS, 2), np.float32)
        cluster.push({"old": (ids, rows), "new": (ids[:1000], rows[:1000])})
        assert cluster.controller.save().rows == NUM_ROWS + 1000

    with Servers(tmp_path, num_ps=1, num_workers=0) as servers:
        servers.start_all()
        servers.connect().create_tables(NEW)
        yield servers


def test_a_table_that_no_program_creates_is_said_and_dropped_and_is_in_no_later_checkpoint(servers):
    cluster = servers.connect()
    stats = cluster.table_stats()
    assert {name: (held.rows, held.is_unclaimed) for name, held in stats.items()} == {
        "old": (NUM_ROWS, True),
        "new": (1000, False),
    }
    with pytest.raises(TableConflict, match="table new is in use"):
        cluster.drop_table("new")
    assert cluster.drop_table("old") == NUM_ROWS
    with pytest.raises(UnknownTable):
        cluster.drop_table("old")
    saved = cluster.controller.save()
    assert saved.rows == 1000
    assert {file.table for file in manifest.read(servers.model_dir / saved.path).files} == {
        "new",
        "",
    }


def test_ctl_says_which_table_can_be_dropped_and_drops_it(servers):
    ctl = ("ctl", "--model-dir", servers.model_dir, "tables")
    _, shown, _ = run_cli(*ctl)
    assert "To drop them: megalith ctl tables drop old" in shown
    status, _, error = run_cli(*ctl, "drop", "new")
    assert status == 1
    assert "table new is in use" in error
    assert json.loads(run_cli(*ctl, "drop", "old", "--json")[1]) == {
        "table": "old",
        "rows": NUM_ROWS,
    }
    assert run_cli(*ctl, "forget", "old")[0] == 2


def test_another_optimizer_is_refused_unless_allowed_and_then_the_weights_stay(servers, caplog):
    cluster = servers.connect()
    before = cluster.pull({"old": IDS}).rows["old"]
    np.testing.assert_array_equal(before, -np.ones((NUM_ROWS, 2), np.float32))
    other = TableConfig("old", (Segment(2, optimizer=Adagrad(0.5)),))
    with pytest.raises(TableConflict, match=r"table old .*2:sgd.*2:adagrad.*--allow-new-layout"):
        cluster.create_tables(other)
    assert cluster.table_stats()["old"].is_unclaimed

    cluster.create_tables(other, allow_new_layout=True)
    assert f"the weights of {NUM_ROWS} rows stay" in caplog.text
    np.testing.assert_array_equal(cluster.pull({"old": IDS}).rows["old"], before)
    wider = TableConfig("old", (Segment(3, optimizer=Adagrad(0.5)),))
    with pytest.raises(TableConflict):  # it is in use by now
        cluster.create_tables(wider, allow_new_layout=True)


def test_rows_of_another_width_are_dropped_and_counted_if_that_is_allowed(servers, caplog):
    cluster = servers.connect()
    wider = TableConfig("old", (Segment(3, optimizer=Sgd(1.0)),))
    cluster.create_tables(wider, allow_new_layout=True)
    assert f"{NUM_ROWS} rows are gone" in caplog.text
    assert cluster.table_stats()["old"].rows == 0
    assert cluster.controller.save().rows == 1000

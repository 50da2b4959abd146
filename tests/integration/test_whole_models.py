"""A ps that was replaced lacks what was created since the checkpoint that it started from."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from megalith.checkpoint.directory import catalog
from megalith.cli.app import app
from megalith.client import Adagrad, Segment, Sgd, TableConfig, VariableConfig
from megalith.errors import SaveFailed
from support.servers import GRACE_S, Servers
from support.waiting import wait_until

OLD = TableConfig("old", (Segment(1, optimizer=Sgd(1.0)),))
NEW = TableConfig("cnt", (Segment(1, optimizer=Sgd(1.0)),))
LARGE = VariableConfig("w", np.zeros((4096, 64), np.float32))
IDS = np.arange(100)


def held_by_first_ps(servers):
    """Tables and variables in its last report."""
    reported = servers.controller._coordinator.journal().ps[0]
    return reported.tables + reported.variables


def replaced_ps(servers, create):
    """A client of two ps.

    Ps 0 was replaced after a save, and the client has called `create` in between.
    """
    servers.start_controller()
    first = servers.start_ps(0)
    servers.start_ps(1)
    client = servers.connect()
    client.create_tables(OLD)
    client.push({"old": (IDS, np.ones((IDS.size, 1), np.float32))})
    client.controller.save()
    create(client)
    wait_until(lambda: held_by_first_ps(servers) > 1, what="its report of what was created")
    epoch = client.controller.status().epoch
    first.stop(GRACE_S)
    servers.start_ps(0)
    wait_until(lambda: client.controller.status().epoch > epoch, what="the replacement")
    return client


@pytest.mark.parametrize(
    ("create", "lost", "missing", "said"),
    [
        (
            lambda client: client.create_variables(LARGE),
            "Lost: 1 variable. Its last report, ",
            "of 2 of variable 'w' are on no ps",
            "variable w: 1 of its 2 parts are missing",
        ),
        (
            lambda client: client.create_tables(NEW),
            "Lost: 1 table. Its last report, ",
            "table 'cnt' is not on ps-0",
            "table cnt is missing on ps-0",
        ),
    ],
    ids=["variable", "table"],
)
def test_a_save_after_a_ps_lost_what_was_created_since_the_checkpoint_is_refused_until_it_exists_again(
    tmp_path, create, lost, missing, said
):
    with Servers(tmp_path, num_ps=2) as servers:
        client = replaced_ps(servers, create)
        assert lost in client.controller.status().losses[0].what
        good = catalog.latest(tmp_path)
        with pytest.raises(SaveFailed) as refused:
            client.controller.save()
        assert missing in str(refused.value)
        status = CliRunner().invoke(app, ["ctl", "--model-dir", str(tmp_path), "status"]).stdout
        in_one_line = " ".join(status.split())
        assert missing in in_one_line
        assert "call create_tables and create_variables, or restart the chief" in in_one_line
        shown = CliRunner().invoke(app, ["ctl", "--model-dir", str(tmp_path), "tables"]).stdout
        assert said in shown
        assert catalog.latest(tmp_path) == good
        create(client)
        shown = CliRunner().invoke(app, ["ctl", "--model-dir", str(tmp_path), "tables"]).stdout
        assert "missing" not in shown
        client.controller.save()
    assert catalog.latest(tmp_path) != good
    with Servers(tmp_path, num_ps=1) as again:
        again.start_all()
        np.testing.assert_array_equal(again.connect().pull({"old": IDS}).rows["old"], -1)


def test_a_save_of_a_table_that_two_ps_have_in_two_layouts_is_refused_until_they_have_one(tmp_path):
    """A ps comes back from a checkpoint of before its tables took a new layout.

    No ps can load the files of two layouts.
    """
    ids = np.arange(300_000)
    ones = np.ones((ids.size, 1), np.float32)
    with Servers(tmp_path, num_ps=2, num_workers=0) as servers:
        servers.start_all()
        client = servers.connect()
        client.create_tables(OLD)
        client.push({"old": (ids, ones)})
        good = client.controller.save()

    other = TableConfig("old", (Segment(1, optimizer=Adagrad(1.0)),))
    with Servers(tmp_path, num_ps=2, num_workers=0) as servers:
        servers.start_controller()
        first = servers.start_ps(0)
        servers.start_ps(1)
        client = servers.connect()
        client.create_tables(other, allow_new_layout=True)
        epoch = client.controller.status().epoch
        first.stop(GRACE_S)
        servers.start_ps(0)
        wait_until(lambda: client.controller.status().epoch > epoch, what="the replacement")
        client.push({"old": (ids, ones)})
        with pytest.raises(SaveFailed, match="has rows 1:adagrad on ps-1, 1:sgd on ps-0"):
            client.controller.save()
        assert catalog.latest(tmp_path).name == Path(good.path).name

        client.create_tables(other, allow_new_layout=True)
        before = client.pull({"old": ids}).rows["old"]
        assert client.controller.save().rows == ids.size

    with Servers(tmp_path, num_ps=1, num_workers=0) as again:
        again.start_all()
        np.testing.assert_array_equal(again.connect().pull({"old": ids}).rows["old"], before)


def test_a_ps_is_replaced_after_the_checkpoint_of_the_start_was_removed_and_others_were_saved(
    tmp_path,
):
    """Without workers each save is of step 0, so that the names differ in their numbers only."""
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(OLD)
        push_ids(cluster, 0, 100)
        assert Path(cluster.controller.save().path).name == "model.ckpt-0"
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        first = servers.start_ps(0)
        servers.start_ps(1)
        cluster = servers.connect()
        push_ids(cluster, 100, 500)
        cluster.controller.save()
        shutil.rmtree(tmp_path / "model.ckpt-0")  # an operator makes room
        push_ids(cluster, 500, 900)
        assert cluster.controller.save().rows == 900
        status = cluster.controller.status
        epoch = status().epoch
        first.stop(GRACE_S)
        servers.start_ps(0)
        wait_until(lambda: status().outcome or status().epoch > epoch, 60, "the replacement")
        assert (status().outcome, status().reason) == ("", "")
        wait_until(lambda: sum(member.rows for member in status().members) == 900)


def push_ids(cluster, first, end):
    ids = np.arange(first, end)
    cluster.push({OLD.name: (ids, np.ones((ids.size, 1), np.float32))})

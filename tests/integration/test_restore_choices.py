"""What a start takes over of a checkpoint: tables left out, variables cleared or renamed."""

from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.directory.increments import read_chain
from megalith.checkpoint.layout import manifest
from megalith.client import Segment, Sgd, TableConfig, VariableConfig, Zeros
from megalith.control import Controller
from megalith.errors import InvalidSetting, ModelDirInUse, UnknownTable
from support.servers import Servers
from support.waiting import wait_until

IDS = np.arange(1000)
NARROW = np.full(3, 7, np.float32)
LARGE = np.arange(60_000, dtype=np.float32).reshape(6000, 10)  # in parts, from two servers on


def table(name):
    return TableConfig(name, (Segment(1, Zeros(), Sgd(1.0)),))


def job_of(servers):
    return Controller(servers.controller.address, None, 60)


def ones(count):
    return np.ones((count, 1), np.float32)


@pytest.fixture
def saved(tmp_path):
    """A model of two tables and three variables, saved by two servers at step 5."""
    with Servers(tmp_path, num_ps=2, increment_every_s=0.0) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(table("kept"), table("old"))
        cluster.create_variables(
            VariableConfig("narrow", NARROW),
            VariableConfig("large", LARGE),
            VariableConfig("global_step", np.array(5, np.int64)),
        )
        cluster.push({"kept": (IDS, ones(1000)), "old": (IDS[:300], ones(300))})
        return Path(job_of(servers).save().path)


def start(model_dir, num_ps=2, **settings):
    servers = Servers(model_dir, num_ps=num_ps, **settings)
    try:
        servers.start_all()
        wait_until(lambda: job_of(servers).status().phase == "running")
    except BaseException:
        servers.__exit__()
        raise

    return servers


def replace_ps_1(servers):
    before = job_of(servers).status().epoch

    def is_replaced():
        status = job_of(servers).status()
        return status.epoch > before and status.phase == "running"

    servers.stop("ps-1")
    servers.start_ps(1)
    wait_until(is_replaced, what="ps-1 is replaced")


@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_tables_are_left_out_on_purpose_and_their_rows_are_counted(tmp_path, saved, num_ps):
    with start(tmp_path, num_ps, leave_out_tables="old") as servers:
        cluster = servers.connect()
        status = job_of(servers).status()
        parts = [member.restored for member in status.members]
        assert sum(part.rows for part in parts) == 1000
        assert sum(part.left_out for part in parts) == 300
        assert status.start_notes == ("left out, as --leave-out-tables says: old",)
        with pytest.raises(UnknownTable):
            cluster.pull({"old": IDS})

        cluster.create_tables(table("old"))  # begins anew
        assert not cluster.pull({"old": IDS}).rows["old"].any()
        cluster.push({"old": (IDS[:7], ones(7))})
        newest = Path(job_of(servers).save().path)
        assert manifest.read(newest).rows == 1007

    with start(tmp_path, num_ps, leave_out_tables="old") as servers:
        status = job_of(servers).status()
        assert sum(member.restored.rows for member in status.members) == 1007
        (note,) = status.start_notes
        assert "was obeyed by an earlier start" in note
        assert str(tmp_path / "leave_out_tables") in note


def test_rows_of_increments_are_left_out_with_their_table(tmp_path, saved):
    with start(tmp_path, increment_every_s=0.1) as servers:
        cluster = servers.connect()
        cluster.push({"old": (IDS[200:400], ones(200)), "kept": (IDS[:1], ones(1))})
        wait_until(lambda: read_chain(saved).last.rows == 1400, what="an increment has it")

    with start(tmp_path, 3, leave_out_tables="old", increment_every_s=0.1) as servers:
        parts = [member.restored for member in job_of(servers).status().members]
        assert sum(part.rows for part in parts) == 1000
        assert sum(part.left_out for part in parts) == 400
        # Only a full save can go on from here.
        servers.connect().push({"kept": (IDS[:1], ones(1))})
        wait_until(lambda: job_of(servers).status().last_checkpoint != str(saved))
        assert manifest.read(Path(job_of(servers).status().last_checkpoint)).rows == 1000


def test_a_ps_that_is_replaced_leaves_out_what_the_others_have_left_out(tmp_path, saved):
    with start(tmp_path, suspect_s=0.5, leave_out_tables="old", increment_every_s=0.0) as servers:
        cluster = servers.connect()
        job = job_of(servers)
        replace_ps_1(servers)
        assert not cluster.table_stats().keys() & {"old"}
        assert job.save().rows == 1000


def test_a_table_that_was_dropped_does_not_come_back_with_a_replaced_ps(tmp_path, saved):
    with start(tmp_path, suspect_s=0.5, increment_every_s=0.0) as servers:
        cluster = servers.connect()
        job = job_of(servers)
        cluster.drop_table("old")
        wait_until(lambda: servers.controller._coordinator.dropped_tables(), what="it is reported")
        replace_ps_1(servers)
        assert job.save().rows == 1000
        assert not cluster.table_stats().keys() & {"old"}


def test_a_table_that_the_checkpoint_does_not_have_cannot_be_left_out(tmp_path, saved):
    with pytest.raises(InvalidSetting, match=r"no table 'odl'; it has \['kept', 'old'\]"):
        start(tmp_path, leave_out_tables="odl")


@pytest.mark.parametrize("keeps_step", [False, True])
def test_dense_variables_begin_anew_once_and_rows_stay(tmp_path, saved, keeps_step):
    settings = {"clear_nn": True, "continue_training": keeps_step}
    with start(tmp_path, **settings) as servers:
        cluster = servers.connect()
        cluster.create_variables(
            VariableConfig("narrow", np.zeros(3, np.float32)),
            VariableConfig("global_step", np.array(0, np.int64)),
        )
        pulled = cluster.pull({"kept": IDS}, ["narrow", "global_step"])
        assert pulled.variables["narrow"].tolist() == [0, 0, 0]
        assert pulled.variables["global_step"] == (5 if keeps_step else 0)
        np.testing.assert_array_equal(pulled.rows["kept"], -ones(1000))
        (note,) = job_of(servers).status().start_notes
        assert note.startswith("dense variables begin anew, as --clear-nn says")
        assert (tmp_path / "clear_nn").exists()
        cluster.push({}, add_to_variables={"narrow": np.ones(3, np.float32)})
        job_of(servers).save()

    with start(tmp_path, **settings) as servers:
        pulled = servers.connect().pull({}, ["narrow"])
        assert pulled.variables["narrow"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_variables_get_their_values_under_new_names(tmp_path, saved, num_ps):
    aliases = "wide=large, slim=narrow"
    with start(tmp_path, num_ps, variable_aliases=aliases) as servers:
        cluster = servers.connect()
        cluster.create_variables(
            VariableConfig("wide", np.zeros_like(LARGE)),
            VariableConfig("slim", np.zeros(3, np.float32)),
        )
        pulled = cluster.pull({}, ["wide", "slim", "global_step"])
        np.testing.assert_array_equal(pulled.variables["wide"], LARGE)
        np.testing.assert_array_equal(pulled.variables["slim"], NARROW)
        assert pulled.variables["global_step"] == 5
        job_of(servers).save()

    with start(tmp_path, num_ps, variable_aliases=aliases) as servers:
        pulled = servers.connect().pull({}, ["wide", "slim"])
        np.testing.assert_array_equal(pulled.variables["wide"], LARGE)


@pytest.mark.parametrize(
    ("aliases", "complaint"),
    [
        ("a=nobody", r"no variable 'nobody'; it has \['global_step', 'large', 'narrow'\]"),
        ("large=narrow", "has a variable 'large', too"),
    ],
)
def test_aliases_that_do_not_fit_the_checkpoint_stop_the_start(tmp_path, saved, aliases, complaint):
    with pytest.raises(InvalidSetting, match=complaint):
        start(tmp_path, variable_aliases=aliases)


def test_to_go_back_in_the_directory_of_a_live_job_is_refused_and_changes_nothing(tmp_path):
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(table("t"))
        older = Path(cluster.controller.save().path)
        newest = cluster.controller.save().path
        before = (tmp_path / "checkpoint").read_bytes()

        with (
            Servers(tmp_path, num_ps=1) as second,
            pytest.raises(ModelDirInUse, match=servers.controller.address),
        ):
            second.start_controller(restore_ckpt=older.name)
        assert (tmp_path / "checkpoint").read_bytes() == before
        assert not (tmp_path / "restore_ckpt").exists()
        assert cluster.controller.status().last_checkpoint == newest

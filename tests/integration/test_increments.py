"""Increments through controller, servers and SDK, in one process."""

import re
import shutil
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.directory.increments import read_chain
from megalith.client import Segment, Sgd, TableConfig, VariableConfig, Zeros
from megalith.control import Controller
from megalith.errors import CheckpointDamaged, SaveFailed
from support.servers import Servers
from support.waiting import wait_until

OFTEN_S = 0.2
TABLE = TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),))
IDS = np.arange(1000)


def ones(count):
    return np.ones((count, 1), np.float32)


def counter(page, name):
    with urllib.request.urlopen(page, timeout=30) as reply:
        text = reply.read().decode()
    return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])


def job_of(servers):
    return Controller(servers.controller.address, None, 60)


def wait_for_increment(base, number):
    wait_until(lambda: read_chain(base).number >= number, what=f"increment {number}")


def test_the_first_save_of_a_new_job_is_due_when_its_first_increment_would_be(tmp_path):
    """Otherwise a ps that dies in the first ten minutes would start empty."""
    with Servers(tmp_path, num_ps=2, increment_every_s=OFTEN_S, save_every_s=600.0) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TABLE)
        cluster.push({"t": (IDS, ones(1000))})
        job = job_of(servers)
        first = Path(wait_until(lambda: job.status().last_checkpoint))
        # It may be due between the making of the table and the push
        wait_until(lambda: read_chain(first).last.rows == 1000, what="a checkpoint of the push")
        cluster.push({"t": (IDS[:10], ones(10))})
        wait_for_increment(first, 1)
        assert [path.name for path in tmp_path.glob("model.ckpt-*")] == [first.name]


def test_a_first_save_that_fails_is_counted_and_tried_again_soon(tmp_path, monkeypatch):
    """And not ten minutes later: until then a ps that dies would start empty."""
    with Servers(tmp_path, num_ps=1, increment_every_s=OFTEN_S, save_every_s=600.0) as servers:
        servers.start_all()
        shards = servers.controller._saver._shards
        write = shards.write
        failed = []
        pushed = threading.Event()

        def fail_at_first(*arguments, **keywords):
            if len(failed) < 4 or not pushed.is_set():  # each save that fails is tried twice
                failed.append(1)
                raise SaveFailed("the disk has gone")
            return write(*arguments, **keywords)

        monkeypatch.setattr(shards, "write", fail_at_first)
        cluster = servers.connect()
        cluster.create_tables(TABLE)
        cluster.push({"t": (IDS, ones(1000))})
        pushed.set()
        job = job_of(servers)
        first = Path(wait_until(lambda: job.status().last_checkpoint))
        assert read_chain(first).last.rows == 1000
        page = f"http://{job.status().metrics_address}/metrics"
        name = r'monolith_training_save_checkpoint_failed_total\{mode="full"\}'
        assert counter(page, name) == len(failed) >= 4


def test_a_job_that_plans_no_saves_has_no_checkpoint_that_nobody_asked_for(tmp_path):
    with Servers(tmp_path, num_ps=1, increment_every_s=OFTEN_S, save_every_s=0.0) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TABLE)
        cluster.push({"t": (IDS, ones(1000))})
        job = job_of(servers)
        wait_until(lambda: job.status().unsaved)
        time.sleep(5 * OFTEN_S)
        assert "there is no checkpoint" in job.status().unsaved
        assert not list(tmp_path.glob("model.ckpt-*"))


def test_a_job_goes_on_from_its_last_increment_on_another_number_of_servers(tmp_path):
    with Servers(tmp_path, num_ps=2, increment_every_s=OFTEN_S) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TABLE)
        cluster.create_variables(VariableConfig("w", np.zeros(2, np.float32)))
        cluster.push({"t": (IDS, ones(1000))})
        job = job_of(servers)
        base = Path(job.save().path)
        cluster.push({"t": (IDS[:10], ones(10))}, add_to_variables={"w": np.ones(2, np.float32)})
        wait_for_increment(base, 1)
        cluster.push({"t": (IDS[5:15], ones(10))})
        wait_for_increment(base, 2)
        wait_until(lambda: not job.status().unsaved, what="a crash would lose nothing")
        expected = cluster.pull({"t": IDS}).rows["t"]
    assert [path.name for path in sorted(tmp_path.glob("saving-*"))] == []

    with Servers(tmp_path, num_ps=3, increment_every_s=OFTEN_S) as servers:
        servers.start_all()
        cluster = servers.connect()
        pulled = cluster.pull({"t": IDS}, ["w"])
        np.testing.assert_array_equal(pulled.rows["t"], expected)
        np.testing.assert_array_equal(pulled.variables["w"], [1, 1])
        restored = [member.restored for member in job_of(servers).status().members]
        assert sum(part.rows for part in restored) == read_chain(base).last.rows == 1000
        assert {part.increments for part in restored} == {read_chain(base).number}

        # The chain goes on with three servers, and the next full save takes its place.
        number = read_chain(base).number
        cluster.push({"t": (IDS[:1], ones(1))})
        wait_for_increment(base, number + 1)
        job_of(servers).save()
        assert not (tmp_path / "increments" / base.name).exists()


def test_increments_left_of_a_checkpoint_of_the_same_name_do_not_matter(tmp_path):
    """As after an operator has moved the checkpoints away to start with an empty model."""
    left = tmp_path / "increments" / "model.ckpt-0" / "000001"
    left.mkdir(parents=True)
    (left / "manifest.json").write_text("{}")
    with Servers(tmp_path, num_ps=1, increment_every_s=OFTEN_S) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TABLE)
        base = Path(job_of(servers).save().path)
        assert base.name == "model.ckpt-0"
        cluster.push({"t": (IDS, ones(1000))})
        wait_for_increment(base, 1)
        assert job_of(servers).status().last_checkpoint == str(base)


def test_what_a_crash_would_lose_is_counted_from_the_last_increment(tmp_path):
    with Servers(tmp_path, num_ps=1, increment_every_s=OFTEN_S) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TABLE)
        job = job_of(servers)
        base = job.save().path
        cluster.push({"t": (IDS, ones(1000))})
        wait_for_increment(Path(base), 1)
        wait_until(lambda: not job.status().unsaved)
    with Servers(tmp_path, num_ps=1, increment_every_s=0.0) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.push({"t": (IDS, ones(1000))})
        job = job_of(servers)
        unsaved = wait_until(lambda: job.status().unsaved, what="the ps reports it")
        assert unsaved == f"pushes of SDK clients since increment 1 of {base}"


def test_a_full_save_takes_the_place_of_an_increment_that_cannot_be_made(tmp_path):
    with Servers(tmp_path, num_ps=2, increment_every_s=OFTEN_S) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", TABLE.segments, touched_capacity=100))
        job = job_of(servers)
        first = job.save()
        cluster.push({"t": (IDS, ones(1000))})
        wait_until(
            lambda: job.status().last_checkpoint != first.path, what="a save that nobody asked for"
        )
        newest = Path(job.status().last_checkpoint)
        assert read_chain(newest).base.rows == 1000
        assert not (tmp_path / "increments" / Path(first.path).name).exists()
        cluster.push({"t": (IDS[:50], ones(50))})
        wait_for_increment(newest, 1)


def test_a_table_that_notes_no_changes_stops_increments_and_status_says_so(tmp_path):
    """A full save every few seconds in their place would never end."""
    with Servers(tmp_path, num_ps=2, increment_every_s=OFTEN_S) as servers:
        servers.start_all()
        cluster = servers.connect()
        silent = TableConfig("silent", TABLE.segments, touched_capacity=0)
        cluster.create_tables(TABLE, silent)
        job = job_of(servers)
        base = job.save().path
        cluster.push({"t": (IDS, ones(1000)), "silent": (IDS, ones(1000))})
        status = wait_until(
            lambda: next((s for s in [job.status()] if s.increment_error), None), what="trouble"
        )
        assert "table silent has touched_capacity 0, so nobody knows" in status.increment_error
        since_s = status.increments_fail_since_s
        page = f"http://{job.status().metrics_address}/metrics"
        wait_until(lambda: counter(page, "megalith_increments_failed_total") >= 3)
        assert counter(page, "megalith_increments_replaced_total") == 0
        assert job.status().last_checkpoint == base
        assert job.status().increments_fail_since_s == since_s

        cluster.create_tables(TABLE, replace(silent, touched_capacity=10_000))
        cluster.push({"t": (IDS, ones(1000))})
        wait_until(lambda: not job.status().unsaved)
        newest = Path(job.status().last_checkpoint)
        cluster.push({"t": (IDS, ones(1000))})
        wait_for_increment(newest, 1)
        wait_until(lambda: not job.status().increment_error, what="the end of the trouble")


def test_full_saves_in_place_of_increments_do_not_make_older_checkpoints_go(tmp_path):
    with Servers(tmp_path, num_ps=1, increment_every_s=OFTEN_S, max_to_keep=3) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", TABLE.segments, touched_capacity=100))
        job = job_of(servers)
        asked_for = [Path(job.save().path) for _ in range(2)]
        seen = {job.status().last_checkpoint}
        for _ in range(4):
            cluster.push({"t": (IDS, ones(1000))})
            wait_until(lambda: job.status().last_checkpoint not in seen, what="an overflow")
            seen.add(job.status().last_checkpoint)

        assert all(path.exists() for path in asked_for)
        newest = Path(job.status().last_checkpoint)
        there = sorted(tmp_path.glob("model.ckpt-*"))
        assert there == sorted([*asked_for, newest]), "each took the place of the one before"
        last = Path(job.save().path)
        assert sorted(tmp_path.glob("model.ckpt-*")) == sorted([*asked_for, last])


def test_a_job_does_not_start_from_a_chain_with_a_gap(tmp_path):
    with Servers(tmp_path, num_ps=1, increment_every_s=OFTEN_S) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TABLE)
        base = Path(job_of(servers).save().path)
        for number in (1, 2):
            cluster.push({"t": (IDS, ones(1000))})
            wait_for_increment(base, number)
    shutil.rmtree(tmp_path / "increments" / base.name / "000001")
    with (
        Servers(tmp_path, num_ps=1) as servers,
        pytest.raises(CheckpointDamaged, match=r"increment 1 of .* is missing"),
    ):
        servers.start_controller()


def test_a_start_loads_the_increments_that_were_there_first_though_the_source_adds_more(tmp_path):
    """Also a ps that comes later, and under the next controller."""
    source_dir = tmp_path / "source"
    model_dir = tmp_path / "model"
    source_dir.mkdir()
    model_dir.mkdir()
    with Servers(source_dir, num_ps=1, increment_every_s=OFTEN_S) as source:
        source.start_all()
        trainer = source.connect()
        trainer.create_tables(TABLE)
        trainer.push({"t": (IDS, ones(1000))})
        base = Path(job_of(source).save().path)
        trainer.push({"t": (IDS, ones(1000))})
        wait_for_increment(base, 1)
        wait_until(lambda: not job_of(source).status().unsaved)
        first_number = read_chain(base).number
        expected = trainer.pull({"t": IDS}).rows["t"]

        for _ in range(2):
            settings = {"restore_dir": str(source_dir), "increment_every_s": 0.0}
            with Servers(model_dir, num_ps=2, **settings) as servers:
                servers.start_controller()
                servers.start_ps(0)
                number = read_chain(base).number
                trainer.push({"t": (IDS, ones(1000))})
                wait_for_increment(base, number + 1)
                servers.start_ps(1)
                cluster = servers.connect()
                np.testing.assert_array_equal(cluster.pull({"t": IDS}).rows["t"], expected)
                restored = [member.restored for member in job_of(servers).status().members]
                assert {part.increments for part in restored} == {first_number}
                assert sum(part.rows for part in restored) == 1000

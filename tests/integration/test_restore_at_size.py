"""Checkpoints of 300,000 rows, through servers and SDK: every value, every accumulator and every
count comes back."""

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from megalith.checkpoint.layout import manifest
from megalith.client import Segment, Sgd, TableConfig, Zeros
from megalith.protos import coordination_pb2, coordination_pb2_grpc
from megalith.wire.channel import open_channel
from support import at_size
from support.servers import Servers
from support.waiting import wait_until

ROWS = 300_000
MANY_ROWS = 5_000_000
USUAL = {("random", 1), ("sorted", 2), ("clustered", 3), ("adversarial", 5)}
CASES = [
    pytest.param(order, num_ps, marks=() if (order, num_ps) in USUAL else pytest.mark.long)
    for order in at_size.ORDERS
    for num_ps in (1, 2, 3, 5)
]


def restored_by(controller):
    with open_channel(controller.address) as channel:
        coordination = coordination_pb2_grpc.CoordinationStub(channel)
        members = coordination.GetStatus(coordination_pb2.GetStatusRequest(), timeout=30).members
    return [member.ps.restored for member in members]


def rows_in_files(directory):
    """The columns of the table by name, in the order of ids, as any reader finds them."""
    parts = []
    for file in manifest.read(directory).files:
        if file.kind == "table":
            with pa.OSFile(str(directory / file.name)) as source:
                parts.append(pa.ipc.open_file(source).read_all())

    table = pa.concat_tables(parts).sort_by("id").combine_chunks()
    return {
        "id": table.column("id").to_numpy(),
        "updated_s": table.column("updated_s").to_numpy(),
        "embedding": floats_of(table.column("embedding")),
        "state": floats_of(table.column("segment_0_norm")),
    }


def floats_of(column):
    return column.combine_chunks().flatten().to_numpy().reshape(-1, at_size.DIM)


def assert_same_bits(directory, other):
    rows, others = rows_in_files(directory), rows_in_files(other)
    for name, column in rows.items():
        np.testing.assert_array_equal(column.view(np.uint8), others[name].view(np.uint8), name)


@pytest.mark.parametrize(("order", "num_ps"), CASES)
def test_a_save_of_two_servers_comes_back_whole_on_another_number(tmp_path, order, num_ps):
    ids = at_size.ids_in(order, ROWS)
    assert np.unique(ids).size == ROWS
    first = at_size.gradients_of(ROWS)
    second = first[::-1].copy()
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(at_size.TABLE)
        at_size.push(cluster, ids, first)
        before = at_size.pull(cluster, ids)
        saved = cluster.controller.save()
    np.testing.assert_allclose(before, at_size.values_after(first), rtol=1e-5)
    assert saved.rows == manifest.read(Path(saved.path)).rows == ROWS
    rows = rows_in_files(Path(saved.path))
    by_id = np.argsort(ids)
    np.testing.assert_array_equal(rows["id"], ids[by_id])
    np.testing.assert_allclose(rows["state"], at_size.accumulators_after(first)[by_id], rtol=1e-6)
    with Servers(tmp_path, num_ps=num_ps) as servers:
        servers.start_all()
        cluster = servers.connect()
        np.testing.assert_array_equal(at_size.pull(cluster, ids), before)
        parts = restored_by(servers.controller)
        assert (sum(part.rows for part in parts), sum(part.expired for part in parts)) == (ROWS, 0)
        wait_until(
            lambda: sum(member.rows for member in cluster.controller.status().members) == ROWS
        )
        again = cluster.controller.save()
        assert again.rows == ROWS
        assert Path(again.path).name == "model.ckpt-r1-0"
        assert_same_bits(Path(saved.path), Path(again.path))
        at_size.push(cluster, ids, second)
        np.testing.assert_allclose(
            at_size.pull(cluster, ids), at_size.values_after(first, second), rtol=1e-5
        )
    assert manifest.read(Path(saved.path)).rows == ROWS


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("order", at_size.ORDERS)
def test_five_million_rows_come_back_bit_by_bit_on_any_number_of_servers(tmp_path, order):
    ids = at_size.ids_in(order, MANY_ROWS)
    gradients = at_size.gradients_of(MANY_ROWS)
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(at_size.TABLE)
        at_size.push(cluster, ids, gradients)
        saved = cluster.controller.save()

    assert saved.rows == manifest.read(Path(saved.path)).rows == MANY_ROWS
    rows = rows_in_files(Path(saved.path))
    by_id = np.argsort(ids)
    np.testing.assert_array_equal(rows["id"], ids[by_id])
    expected = at_size.accumulators_after(gradients)[by_id]
    np.testing.assert_allclose(rows["state"], expected, rtol=1e-6)
    expected = at_size.values_after(gradients)[by_id]
    np.testing.assert_allclose(rows["embedding"], expected, rtol=1e-5)

    for num_ps in (1, 2, 3, 5):
        with Servers(tmp_path, num_ps=num_ps) as servers:
            servers.start_all()
            cluster = servers.connect()
            at_size.pull(cluster, ids[:1])  # waits until all have restored
            parts = restored_by(servers.controller)
            assert sum(part.rows for part in parts) == MANY_ROWS
            again = cluster.controller.save()

        assert_same_bits(Path(saved.path), Path(again.path))


def test_an_expiry_of_a_live_table_drops_every_old_row_and_no_other(tmp_path):
    """Sorted ids: of each three in a row, one is old. Others are created meanwhile."""
    day_s = 86_400
    ids = at_size.ids_in("sorted", ROWS)
    is_old = ids % 3 == 0
    old, young = ids[is_old], ids[~is_old]
    table = TableConfig("dated", (Segment(1, Zeros(), Sgd(1.0)),), expire_days=1)
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(table)
        push_dated(cluster, old, 10 * day_s)
        push_dated(cluster, young, 13 * day_s)
        others = np.arange(ROWS, ROWS + 50_000)
        creating = threading.Thread(
            target=push_dated, args=(servers.connect(), others, 13 * day_s, 500)
        )
        creating.start()
        dropped = cluster.expire()
        creating.join(60)
        assert dropped == {"dated": old.size}
        left = young.size + others.size
        wait_until(
            lambda: sum(member.rows for member in cluster.controller.status().members) == left
        )
        np.testing.assert_array_equal(pull_dated(cluster, others), -1)
        np.testing.assert_array_equal(pull_dated(cluster, young), -1)
        np.testing.assert_array_equal(pull_dated(cluster, old), 0)
        push_dated(cluster, ids, 13 * day_s)  # into the room of the old ones
        np.testing.assert_array_equal(pull_dated(cluster, young), -2)
        np.testing.assert_array_equal(pull_dated(cluster, old), -1)
        assert cluster.controller.save().rows == ROWS + others.size
    with Servers(tmp_path, num_ps=3) as servers:
        servers.start_all()
        cluster = servers.connect()
        np.testing.assert_array_equal(pull_dated(cluster, young), -2)
        np.testing.assert_array_equal(pull_dated(cluster, old), -1)
        parts = restored_by(servers.controller)
        assert sum(part.rows for part in parts) == ROWS + others.size
        assert sum(part.expired for part in parts) == 0


def push_dated(cluster, ids, req_time_s, at_once=100_000):
    for start in range(0, ids.size, at_once):
        some = ids[start : start + at_once]
        gradients = np.ones((some.size, 1), np.float32)
        cluster.push({"dated": (some, gradients)}, req_time_s=req_time_s)


def pull_dated(cluster, ids):
    parts = [
        cluster.pull({"dated": ids[start : start + 100_000]}).rows["dated"]
        for start in range(0, ids.size, 100_000)
    ]
    return np.concatenate(parts)[:, 0]

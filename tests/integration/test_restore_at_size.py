"""Checkpoints of 300,000 rows, through servers and SDK: every value, every accumulator and every count comes back."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from megalith.protos import coordination_pb2, coordination_pb2_grpc
from megalith.runtime import manifest
from megalith.wire.channel import open_channel
from support import at_size
from support.servers import Servers
from support.waiting import wait_until

ROWS = 300_000
USUAL = {("random", 1), ("sorted", 2), ("clustered", 3), ("adversarial", 2)}
CASES = [
    pytest.param(order, num_ps, marks=() if (order, num_ps) in USUAL else pytest.mark.long)
    for order in at_size.ORDERS
    for num_ps in (1, 2, 3)
]


def restored_by(controller):
    with open_channel(controller.address) as channel:
        coordination = coordination_pb2_grpc.CoordinationStub(channel)
        members = coordination.GetStatus(coordination_pb2.GetStatusRequest(), timeout=30).members
    return [member.ps.restored for member in members]


def state_in_files(directory):
    """Accumulators by id, as any reader finds them in the files."""
    ids, states = [], []
    for file in manifest.read(directory).files:
        if file.kind == "table":
            with pa.OSFile(str(directory / file.name)) as source:
                rows = pa.ipc.open_file(source).read_all().combine_chunks()
            ids.append(rows.column("id").to_numpy())
            states.append(
                rows.column("state").combine_chunks().flatten().to_numpy().reshape(-1, at_size.DIM)
            )
    return np.concatenate(ids), np.concatenate(states)


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
    saved_ids, states = state_in_files(Path(saved.path))
    by_id = np.argsort(ids)
    saved_by_id = np.argsort(saved_ids)
    np.testing.assert_array_equal(saved_ids[saved_by_id], ids[by_id])
    np.testing.assert_allclose(
        states[saved_by_id], at_size.accumulators_after(first)[by_id], rtol=1e-6
    )
    with Servers(tmp_path, num_ps=num_ps) as servers:
        servers.start_all()
        cluster = servers.connect()
        np.testing.assert_array_equal(at_size.pull(cluster, ids), before)
        parts = restored_by(servers.controller)
        assert (sum(part.rows for part in parts), sum(part.expired for part in parts)) == (ROWS, 0)
        wait_until(
            lambda: sum(member.rows for member in cluster.controller.status().members) == ROWS
        )
        at_size.push(cluster, ids, second)
        np.testing.assert_allclose(
            at_size.pull(cluster, ids), at_size.values_after(first, second), rtol=1e-5
        )
        again = cluster.controller.save()
    assert again.rows == ROWS
    assert Path(again.path).name == "model.ckpt-r1-0"
    assert manifest.read(Path(saved.path)).rows == ROWS

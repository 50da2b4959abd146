"""Which server is asked for which ids, in which order, and where its floats go."""

import numpy as np
import pytest

from megalith.client import Segment, TableConfig
from megalith.client._ids import RecentIds
from megalith.client._plans import PullPlan, PushPlan
from megalith.wire.routing import NUM_BUCKETS, Routing, buckets_of


def routing_by_remainder(num_servers, ids):
    """A map by which server `id % num_servers` owns each of these ids, as in Monolith."""
    ids = np.array(sorted(set(ids)), np.int64)
    buckets = buckets_of(ids)
    assert np.unique(buckets).size == ids.size  # no two of them are in one bucket
    owners = np.zeros(NUM_BUCKETS, np.uint16)
    owners[buckets] = ids % num_servers
    return Routing(1, ("a",) * num_servers, owners)


def plan_of(tables, num_servers):
    routing = routing_by_remainder(num_servers, [id_ for ids in tables.values() for id_ in ids])
    arrays = {table: np.array(ids, np.int64) for table, ids in tables.items()}
    return PullPlan(routing, arrays, (), RecentIds())


def sizes_of(plan, tables, num_servers):
    """How many ids each server is asked for, by server and then by table."""
    sizes = []
    for server in range(num_servers):
        asked = {}
        if server in plan.calls:
            call = plan.calls[server]
            for part, ids in zip(call.message.tables, call.arrays, strict=True):
                asked[part.table] = ids.size
        sizes += [asked.get(table, 0) for table in tables]
    return sizes


def answer(plan, widths):
    """Servers answer in turn with the floats 0, 1, 2 and so on."""
    start = 0
    for call in plan.calls.values():
        for number, (part, ids) in enumerate(zip(call.message.tables, call.arrays, strict=True)):
            floats = np.arange(start, start + ids.size * widths[part.table], dtype=np.float32)
            call.sink(number, floats.nbytes)[:] = floats.tobytes()
            start += floats.size


@pytest.mark.golden("DistributionOps.fused_reorder_by_indices")
@pytest.mark.parametrize(
    ("tables", "num_servers", "dims", "expected"),
    [
        (
            [[0, 1, 0], [3, 2, 3], [5, 6, 7]],
            2,
            [1, 2, 3],
            ([0, 2, 6, 1, 3, 5, 7], [3, 4], [1, 1, 1, 1, 1, 2], [0, 6, 0, 7, 1, 7, 9, 3, 12]),
        ),
        (
            [[2, 3, 1, 2, 7, 2], [5, 8, 4, 4, 5, 11, 6]],
            3,
            [3, 2],
            (
                [3, 6, 1, 7, 4, 2, 5, 8, 11],
                [2, 3, 4],
                [1, 1, 2, 1, 1, 3],
                [13, 0, 5, 13, 8, 13, 16, 18, 11, 11, 16, 20, 3],
            ),
        ),
        (
            [[0, 1, 2, 2, 3, 5], [6, 7, 8, 8, 9, 11]],
            3,
            [1, 1],
            (
                [0, 3, 6, 9, 1, 7, 2, 5, 8, 11],
                [4, 2, 4],
                [2, 2, 1, 1, 2, 2],
                [0, 4, 6, 6, 1, 7, 2, 5, 8, 8, 3, 9],
            ),
        ),
        ([[], []], 2, [1, 1], ([], [0, 0], [0, 0, 0, 0], [])),
        (
            [[0, 1, 2, 2, 3, 5], []],
            3,
            [1, 1],
            ([0, 3, 1, 2, 5], [2, 1, 2], [2, 0, 1, 0, 2, 0], [0, 2, 3, 3, 1, 4]),
        ),
    ],
)
def test_requests_are_ordered_by_server_then_table_with_their_offsets(
    tables, num_servers, dims, expected
):
    ids_by_table = {f"t{number}": ids for number, ids in enumerate(tables)}
    widths = {f"t{number}": dim for number, dim in enumerate(dims)}
    plan = plan_of(ids_by_table, num_servers)

    sent = [id_ for call in plan.calls.values() for ids in call.arrays for id_ in ids.tolist()]
    sizes = sizes_of(plan, ids_by_table, num_servers)
    shards = np.array(sizes).reshape(num_servers, -1).sum(axis=1).tolist()
    # The first float of an id's row is its offset, because the servers answer with 0, 1, 2 ...
    answer(plan, widths)
    rows = plan.rows(lambda table: TableConfig(table, (Segment(widths[table]),)))
    offsets = [int(row[0]) for table in ids_by_table for row in rows[table]]
    assert (sent, shards, sizes, offsets) == expected


@pytest.mark.golden("DistributionOps.ragged_split_by_indices")
def test_ids_of_two_tables_are_split_by_server():
    """[[4, 3, 2], [1]] over servers 0, 1, 0, 1: [[4, 2], []] and [[3], [1]], from the positions
    [0, 2] and [1, 3]."""
    plan = plan_of({"first": [4, 3, 2], "second": [1]}, 2)
    asked = {
        server: {
            part.table: ids.tolist()
            for part, ids in zip(call.message.tables, call.arrays, strict=True)
        }
        for server, call in plan.calls.items()
    }
    assert asked == {0: {"first": [4, 2]}, 1: {"first": [3], "second": [1]}}

    answer(plan, {"first": 1, "second": 1})
    rows = plan.rows(lambda table: TableConfig(table, (Segment(1),)))
    # Server 0 answers with 0 and 1, server 1 with 2 and 3: each at the position of its id.
    assert rows["first"].tolist() == [[0], [2], [1]]
    assert rows["second"].tolist() == [[3]]


@pytest.mark.golden("G21")
def test_the_arrays_of_all_tables_of_a_server_travel_in_one_body():
    plan = PushPlan(
        routing_by_remainder(1, [0, 1, 2]),
        lambda table: TableConfig(table, (Segment(2),)),
        RecentIds(),
    )
    plan.add_gradients("x", [0], np.array([[1, 2]], np.float32), ())
    plan.add_gradients("y", [1, 2], np.array([[4, 5], [6, 7]], np.float32), ())
    (call,) = plan.calls().values()

    gradients = call.body()[2:]  # after the ids of both tables
    assert [part.nbytes // 4 for part in gradients] == [2, 4]
    packed = np.frombuffer(b"".join(gradients), np.float32)
    assert packed.tolist() == [1, 2, 4, 5, 6, 7]

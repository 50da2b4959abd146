"""Rows assigned, added to and made as new, through the SDK and raw, against two real servers."""

import itertools

import numpy as np
import pytest

from megalith.client import (
    Adagrad,
    AdmissionConfig,
    FilterKind,
    PolynomialDecay,
    Segment,
    Sgd,
    TableConfig,
    errors,
)
from megalith.client._transport.requests import UnaryCall
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.wire import arrays
from megalith.wire.channel import open_channel
from megalith.wire.status import translated


def sgd(name, dim, **settings):
    return TableConfig(name, (Segment(dim, optimizer=Sgd(1.0), **settings),))


def rows(*values, dim=2):
    return np.array([[value] * dim for value in values], np.float32)


def read(cluster, name, ids):
    return cluster.pull({name: ids}).rows[name].tolist()


@pytest.mark.golden("DistributedPsTest.basic")
def test_added_rows_are_read_back_for_every_repetition_of_an_id(cluster, name):
    """Lookup after assign_add; duplicates are preserved."""
    cluster.create_tables(sgd(name, 2))
    cluster.add_to_rows({name: ([1, 2, 3], rows(1, 2, 3))})
    assert read(cluster, name, [1, 2, 3]) == [[1, 1], [2, 2], [3, 3]]
    assert read(cluster, name, [1, 1, 3]) == [[1, 1], [1, 1], [3, 3]]


@pytest.mark.golden("DistributedPsTest.assign")
def test_assigning_some_rows_leaves_the_others_untouched(cluster, name):
    """A second assign of [2,3,4] leaves 1 untouched."""
    cluster.create_tables(sgd(name, 2))
    cluster.assign_rows({name: ([1, 2, 3], rows(1, 2, 3))})
    assert read(cluster, name, [1, 2, 3]) == [[1, 1], [2, 2], [3, 3]]
    cluster.assign_rows({name: ([2, 3, 4], rows(1, 2, 3))})
    assert read(cluster, name, [1, 2, 3, 4]) == [[1, 1], [1, 1], [2, 2], [3, 3]]


@pytest.mark.golden("DistributedPsTest.apply_gradients")
def test_sgd_at_rate_1_subtracts_the_gradient(cluster, name):
    """Ids [0,1], upstream 2."""
    cluster.create_tables(sgd(name, 1))
    cluster.push({name: ([0, 1], rows(2, 2, dim=1))})
    assert read(cluster, name, [0, 1]) == [[-2], [-2]]


@pytest.mark.golden("DistributedPsTest.multi_table", "DistributedPsTest.float16_transfer")
@pytest.mark.parametrize("options", [{}, {"row_dtype": "float16", "gradient_dtype": "float16"}])
def test_tables_of_two_widths_are_added_to_and_trained(servers, name, options):
    """Tables of width 1 and 2; assign_add, then a gradient of half of it.

    Also in float16.
    """
    cluster, one, two = servers.connect(**options), f"{name}1", f"{name}2"
    cluster.create_tables(sgd(one, 1), sgd(two, 2))
    values = {one: ([1, 2], rows(-1, -2, dim=1)), two: ([3], rows(-3))}
    cluster.add_to_rows(values)
    assert (read(cluster, one, [1, 2]), read(cluster, two, [3])) == ([[-1], [-2]], [[-3, -3]])
    cluster.push({table: (ids, given / 2) for table, (ids, given) in values.items()})
    assert (read(cluster, one, [1, 2]), read(cluster, two, [3])) == ([[-0.5], [-1]], [[-1.5, -1.5]])


@pytest.mark.golden("DistributedPsTest.learning_rate_function")
def test_a_table_s_schedule_gives_the_rate_of_the_step(cluster, name):
    """Polynomial 1 -> 2 over 10 steps: at step 1 the rate is 1.1."""
    cluster.create_tables(sgd(name, 1, schedule=PolynomialDecay(1.0, 10, 2.0)))
    cluster.add_to_rows({name: ([1, 2], rows(-1, -2, dim=1))})
    for step, expected in enumerate(([[-0.5], [-1]], [[0.05], [0.1]])):
        cluster.push({name: ([1, 2], rows(-0.5, -1, dim=1))}, step=step)
        np.testing.assert_allclose(read(cluster, name, [1, 2]), expected, atol=1e-6)


@pytest.mark.golden("DistributedPsTest.reinitialize")
def test_reinitialize_over_two_servers_answers_in_the_order_of_the_request(cluster, name):
    """Status [1,1,0] over two servers, in the order of the request.

    An unknown table is all -1.
    """
    cluster.create_tables(sgd(name, 1))
    cluster.add_to_rows({name: ([1, 2], rows(-1, -2, dim=1))})
    assert cluster.reinitialize_rows(name, [1, 2, 3]).tolist() == [1, 1, 0]
    assert cluster.reinitialize_rows(name, [1, 2, 3]).tolist() == [1, 1, 1]
    assert read(cluster, name, [1, 2, 3]) == [[0], [0], [0]]
    assert cluster.reinitialize_rows(f"no {name}", [1, 2, 3]).tolist() == [-1, -1, -1]


def test_many_ids_keep_their_order_and_repeated_ones_are_taken_one_after_the_other(cluster, name):
    cluster.create_tables(sgd(name, 1))
    ids = np.random.default_rng(0).integers(0, 500, 2_000)
    values = np.arange(ids.size, dtype=np.float32)[:, None]
    cluster.assign_rows({name: (ids, values)})
    last, added = (
        dict(zip(ids.tolist(), values[:, 0], strict=True)),
        np.bincount(ids, minlength=500),
    )
    distinct = np.unique(ids)
    assert read(cluster, name, distinct) == [[last[key]] for key in distinct.tolist()]
    cluster.add_to_rows({name: (ids, np.ones_like(values))})
    assert read(cluster, name, distinct) == [[last[key] + added[key]] for key in distinct.tolist()]
    fresh = np.array([1000, 1001, 1000])
    assert cluster.reinitialize_rows(name, fresh).tolist() == [0, 0, 1]


def test_assigned_rows_keep_their_state_and_new_ones_start_with_it(cluster, name):
    """Adagrad from 1: the second gradient of id 1 is the smaller step, though its value was set in
    between."""
    cluster.create_tables(
        TableConfig(name, (Segment(1, optimizer=Adagrad(1.0, initial_accumulator_value=1.0)),))
    )
    cluster.push({name: ([1], rows(1, dim=1))})
    cluster.assign_rows({name: ([1, 2], rows(5, 5, dim=1))})
    cluster.push({name: ([1, 2], rows(1, 1, dim=1))})
    np.testing.assert_allclose(
        read(cluster, name, [1, 2]), [[5 - 3**-0.5], [5 - 2**-0.5]], rtol=1e-6
    )
    cluster.reinitialize_rows(name, [1])
    cluster.push({name: ([1], rows(1, dim=1))})
    np.testing.assert_allclose(read(cluster, name, [1]), [[-(2**-0.5)]], rtol=1e-6)


def test_the_filter_is_asked_about_assigned_ids_and_not_about_those_made_as_new(cluster, name):
    rule = AdmissionConfig(kind=FilterKind.PLAIN, default_threshold=1, capacity=10_000)
    cluster.create_tables(TableConfig(name, (Segment(1, optimizer=Sgd(1.0)),), admission=rule))
    cluster.add_to_rows({name: ([1], rows(1, dim=1))})
    assert read(cluster, name, [1]) == [[0]]
    cluster.add_to_rows({name: ([1], rows(1, dim=1))})
    assert read(cluster, name, [1]) == [[1]]
    assert cluster.reinitialize_rows(name, [2]).tolist() == [0]


def test_nothing_to_write_is_written(cluster, name):
    cluster.create_tables(sgd(name, 2))
    cluster.assign_rows({})
    cluster.assign_rows({name: ([], np.empty((0, 2), np.float32))})
    assert cluster.reinitialize_rows(name, []).tolist() == []


@pytest.mark.parametrize(
    ("ids", "values", "error"),
    [
        ([1.5], rows(1), errors.DtypeMismatch),
        ([1, 2], rows(1), errors.ShapeMismatch),
        ([1, 2], rows(1, 2, dim=3), errors.ShapeMismatch),
        ([1, 2], rows(1, np.nan), errors.NonFiniteValue),
        ([1], np.array([[1, 2]]), errors.DtypeMismatch),
    ],
)
def test_bad_values_are_refused_and_no_table_of_the_call_is_changed(cluster, ids, values, error):
    cluster.create_tables(sgd("good", 2), sgd("bad", 2))
    before = read(cluster, "good", [1, 2])
    for write in (cluster.assign_rows, cluster.add_to_rows):
        with pytest.raises(error):
            write({"good": ([1, 2], rows(7, 7)), "bad": (ids, values)})
        with pytest.raises(errors.UnknownTable):
            write({"good": ([1, 2], rows(7, 7)), "unknown": ([1, 2], rows(7, 7))})
    assert read(cluster, "good", [1, 2]) == before


def test_a_lost_reply_is_asked_for_again_and_nothing_is_added_twice(cluster, name, monkeypatch):
    """Every other reply is lost after its server has sent it: the repeated call gets that answer
    again."""
    cluster.create_tables(sgd(name, 1))
    real = UnaryCall.finish
    replies = itertools.count()

    def lost_by_turns(self, deadline):
        reply = real(self, deadline)
        if next(replies) % 2 == 0:
            raise errors.PeerUnreachable("the reply was lost")
        return reply

    monkeypatch.setattr(UnaryCall, "finish", lost_by_turns)
    cluster.add_to_rows({name: ([1, 2], rows(1, 2, dim=1))})
    assert cluster.reinitialize_rows(name, [2, 3]).tolist() == [1, 0]
    assert read(cluster, name, [1, 2, 3]) == [[1], [0], [0]]
    assert next(replies) >= 4


# --- raw ---


@pytest.fixture
def raw(cluster, name):
    """ps-0 as a client in any language sees it, and two ids that it owns; one that it does not."""
    cluster.create_tables(sgd(name, 1))
    routing = cluster.controller.routing()
    candidates = np.arange(100)
    owners = routing.owner_of(candidates)
    with open_channel(routing.addresses[0]) as channel:
        stub = parameter_server_pb2_grpc.ParameterServerStub(channel)
        stub.run_id = routing.run_id
        stub.epoch, stub.mine, stub.other = (
            routing.epoch,
            candidates[owners == 0][:2],
            candidates[owners == 1][:1],
        )
        yield stub


def assign_request(stub, name, **changes):
    values = pb.TableValues(
        table=name, ids=arrays.encode(stub.mine), values=arrays.encode(rows(1, 2, dim=1))
    )
    fields = {
        "epoch": stub.epoch,
        "client_id": name,
        "sequence": 1,
        "tables": [values],
        "is_added": True,
        **changes,
    }
    return pb.AssignRowsRequest(run_id=stub.run_id, **fields)


def assign(stub, request):
    with translated("ps-0"):
        stub.AssignRows(request, timeout=30)


BAD = {
    "ids of 7 bytes": (
        lambda part, stub: part.MergeFrom(pb.TableValues(ids=b"1234567")),
        errors.MalformedArray,
    ),
    "values of 5 bytes": (
        lambda part, stub: part.MergeFrom(pb.TableValues(values=b"12345")),
        errors.MalformedArray,
    ),
    "no ids": (lambda part, stub: part.ClearField("ids"), errors.MalformedArray),
    "too wide": (
        lambda part, stub: part.MergeFrom(pb.TableValues(values=arrays.encode(rows(1, 2, dim=3)))),
        errors.ShapeMismatch,
    ),
    "infinite": (
        lambda part, stub: part.MergeFrom(
            pb.TableValues(values=arrays.encode(rows(1, np.inf, dim=1)))
        ),
        errors.NonFiniteValue,
    ),
    "of another server": (
        lambda part, stub: part.MergeFrom(
            pb.TableValues(ids=arrays.encode(np.append(stub.mine[:1], stub.other)))
        ),
        errors.ShardNotOwned,
    ),
    "unknown table": (
        lambda part, stub: part.MergeFrom(pb.TableValues(table="unknown")),
        errors.UnknownTable,
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_raw_assign_is_a_typed_error_and_changes_nothing(raw, cluster, name, case):
    change, error = BAD[case]
    request = assign_request(raw, name)
    change(request.tables[0], raw)
    with pytest.raises(error):
        assign(raw, request)
    assert read(cluster, name, raw.mine) == [[0], [0]]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"client_id": ""}, errors.InvalidRequest),
        ({"sequence": 0}, errors.InvalidRequest),
        ({"req_time_s": -1}, errors.InvalidRequest),
        ({"epoch": 0}, errors.StaleEpoch),
    ],
)
def test_a_raw_assign_without_its_due_is_refused(raw, cluster, name, changes, error):
    with pytest.raises(error):
        assign(raw, assign_request(raw, name, **changes))
    assert read(cluster, name, raw.mine) == [[0], [0]]


def test_a_repeated_raw_assign_add_is_applied_once_and_others_may_not_use_its_number(
    raw, cluster, name
):
    request = assign_request(raw, name)
    for _ in range(3):
        assign(raw, request)
    assert read(cluster, name, raw.mine) == [[1], [2]]
    with pytest.raises(errors.ClientIdTaken):
        assign(raw, assign_request(raw, name, incarnation=9))
    again = pb.ReinitializeRowsRequest(
        epoch=raw.epoch,
        run_id=raw.run_id,
        client_id=name,
        sequence=1,
        table=name,
        ids=arrays.encode(raw.mine),
    )
    with (
        pytest.raises(errors.InvalidRequest, match="was `assign_add` and is now `reinitialize`"),
        translated("ps-0"),
    ):
        raw.ReinitializeRows(again, timeout=30)
    assert read(cluster, name, raw.mine) == [[1], [2]]

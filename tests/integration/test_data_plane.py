"""Tables and variables through the SDK, against real servers."""

import re
import threading
import urllib.request

import grpc
import numpy as np
import pytest

from megalith.client import Adagrad, Segment, Sgd, TableConfig, VariableConfig, Zeros, errors
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.runtime.rpc.server import ServerSettings
from megalith.wire import arrays
from megalith.wire.channel import open_channel
from megalith.wire.status import error_from_rpc
from support.servers import Servers

IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 3_000)


@pytest.fixture
def servers(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        yield servers


@pytest.fixture
def cluster(servers):
    cluster = servers.connect()
    cluster.create_tables(
        TableConfig("sgd", (Segment(2, Zeros(), Sgd(1.0)),)),
        TableConfig("adagrad", (Segment(3, Zeros(), Adagrad(0.1)),)),
    )
    cluster.create_variables(
        VariableConfig("w", np.zeros(3, np.float32), Sgd(0.5)),
        VariableConfig("n", np.zeros((), np.int64)),
    )
    return cluster


@pytest.fixture
def stub(servers, cluster):
    """ps-0 as a client in any language sees it, with the current epoch."""
    routing = cluster.controller.routing()
    with open_channel(routing.addresses[0]) as channel:
        stub = parameter_server_pb2_grpc.ParameterServerStub(channel)
        stub.epoch, stub.routing = routing.epoch, routing
        yield stub


@pytest.mark.golden("DistributedPsTest.duplicates")
def test_the_gradients_of_a_repeated_id_add_up(cluster):
    """SGD at rate 1, zeros, upstream 2."""
    cluster.push({"sgd": ([0, 3, 0, 1], np.full((4, 2), 2, np.float32))})
    rows = cluster.pull({"sgd": [0, 3, 0, 1]}).rows["sgd"]
    np.testing.assert_array_equal(rows, [[-4, -4], [-2, -2], [-4, -4], [-2, -2]])


@pytest.mark.golden("DistributedPsTest.different_ids")
def test_gradients_train_the_ids_they_name_over_two_servers(cluster):
    cluster.push({"sgd": ([1, 1], np.full((2, 2), -2, np.float32))})
    np.testing.assert_array_equal(cluster.pull({"sgd": [1, 0]}).rows["sgd"], [[4, 4], [0, 0]])


def test_rows_come_back_in_the_order_asked_for(cluster):
    gradients = -np.arange(2 * IDS.size, dtype=np.float32).reshape(-1, 2)
    cluster.push({"sgd": (IDS, gradients)})
    order = np.random.default_rng(1).permutation(IDS.size)
    np.testing.assert_array_equal(cluster.pull({"sgd": IDS[order]}).rows["sgd"], -gradients[order])


def test_all_tables_and_variables_of_a_step_go_in_one_call_per_server(cluster):
    added = cluster.push(
        {
            "sgd": (IDS, np.ones((IDS.size, 2), np.float32)),
            "adagrad": (IDS, np.ones((IDS.size, 3), np.float32)),
        },
        variable_gradients={"w": np.ones(3, np.float32)},
        add_to_variables={"n": np.array(5, np.int64)},
    )
    assert added["n"] == 5
    pulled = cluster.pull({"sgd": IDS[:1], "adagrad": IDS[:1]}, ["w", "n"])
    np.testing.assert_array_equal(pulled.rows["sgd"], [[-1, -1]])
    np.testing.assert_allclose(
        pulled.rows["adagrad"], np.full((1, 3), -0.1 / np.sqrt(1.1)), rtol=1e-6
    )
    np.testing.assert_array_equal(pulled.variables["w"], [-0.5, -0.5, -0.5])
    cluster.push(assign_variables={"w": np.array([1, 2, 3], np.float32)})
    np.testing.assert_array_equal(cluster.pull(variables=["w"]).variables["w"], [1, 2, 3])


def test_rates_of_a_push_win(cluster):
    cluster.push({"sgd": ([1], np.ones((1, 2), np.float32))}, learning_rates={"sgd": (3.0,)})
    np.testing.assert_array_equal(cluster.pull({"sgd": [1]}).rows["sgd"], [[-3, -3]])


def test_an_empty_pull_has_the_table_s_width(cluster, servers):
    assert cluster.pull({"sgd": []}).rows["sgd"].shape == (0, 2)
    assert servers.connect().pull({"adagrad": np.empty(0, np.int64)}).rows["adagrad"].shape == (
        0,
        3,
    )
    with pytest.raises(errors.UnknownTable, match="no table 'x'"):
        servers.connect().pull({"x": []})


def test_each_lookup_is_timed_in_microseconds_under_monolith_s_name(cluster, servers):
    def lookups():
        address = cluster.controller.status().members[0].metrics_address
        page = urllib.request.urlopen(f"http://{address}/metrics", timeout=60).read().decode()
        tags = f'{{model_name="{servers.model_dir.name}",ps="0"}}'
        return [
            float(
                re.search(
                    rf"^monolith_training_embedding_lookup_{field}{re.escape(tags)} (\S+)$",
                    page,
                    re.M,
                ).group(1)
            )
            for field in ("count", "sum")
        ]

    before = lookups()
    cluster.pull({"sgd": IDS})
    cluster.pull(variables=["w"])  # no lookup
    after = lookups()
    assert after[0] == before[0] + 1
    assert 0.1 < after[1] - before[1] < 60e6


def test_an_empty_push_changes_nothing(cluster):
    assert cluster.push({"sgd": ([], np.empty((0, 2), np.float32))}) == {}


def test_pushes_of_several_clients_add_up_to_the_last_bit(servers, cluster):
    ids = np.arange(500)
    clients = [servers.connect() for _ in range(4)]

    def push(client):
        for _ in range(25):
            client.push(
                {"sgd": (ids, np.ones((ids.size, 2), np.float32))},
                add_to_variables={"n": np.array(1, np.int64)},
            )

    threads = [threading.Thread(target=push, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pulled = cluster.pull({"sgd": ids}, ["n"])
    np.testing.assert_array_equal(pulled.rows["sgd"], np.full((500, 2), -100))
    assert pulled.variables["n"] == 100


def call_error(call, request):
    with pytest.raises(grpc.RpcError) as raised:
        call(request, timeout=30)
    return raised.value.code(), error_from_rpc(raised.value, "ps")


def mine(stub, count):
    return IDS[stub.routing.owner_of(IDS) == 0][:count]


def push_request(stub, **changes):
    ids = mine(stub, 2)
    part = {
        "table": "sgd",
        "ids": arrays.encode(ids),
        "gradients": arrays.encode(np.ones((2, 2), np.float32)),
    }
    request = {
        "epoch": stub.epoch,
        "run_id": stub.routing.run_id,
        "client_id": "raw",
        "sequence": 1,
    }
    request |= {name: changes.pop(name) for name in list(changes) if name in request}
    return pb.PushRequest(**request, tables=[pb.TableGradients(**(part | changes))])


NAN = arrays.encode(np.array([[1, 2], [np.nan, 4]], np.float32))
BAD_PUSHES = {
    "ids not a multiple of 8": (
        {"ids": b"1234567"},
        "INVALID_ARGUMENT",
        errors.MalformedArray,
        "7 bytes",
    ),
    "gradient bytes cut": (
        {"gradients": b"x" * 15},
        "INVALID_ARGUMENT",
        errors.MalformedArray,
        "15 bytes",
    ),
    "no ids": ({"ids": b""}, "INVALID_ARGUMENT", errors.MalformedArray, "for 0 ids"),
    "wrong width": (
        {"gradients": b"\0" * 24},
        "INVALID_ARGUMENT",
        errors.ShapeMismatch,
        "need (2, 2)",
    ),
    "nan": ({"gradients": NAN}, "INVALID_ARGUMENT", errors.NonFiniteValue, "NaN or infinity"),
    "unknown table": ({"table": "x"}, "NOT_FOUND", errors.UnknownTable, "no table 'x'; it has"),
    "two rates": (
        {"learning_rates": [1, 2]},
        "INVALID_ARGUMENT",
        errors.ShapeMismatch,
        "learning rates of shape (2,)",
    ),
    "stale epoch": ({"epoch": 0}, "ABORTED", errors.StaleEpoch, "epoch 0"),
    "future epoch": ({"epoch": 99}, "UNAVAILABLE", errors.NotReady, "the request at 99"),
    "another run": (
        {"run_id": "0123"},
        "FAILED_PRECONDITION",
        errors.WrongRun,
        "this client is of run 0123",
    ),
    "no run": ({"run_id": ""}, "FAILED_PRECONDITION", errors.WrongRun, "of no run"),
    "no client": ({"client_id": ""}, "INVALID_ARGUMENT", errors.InvalidRequest, "client id"),
    "no sequence": ({"sequence": 0}, "INVALID_ARGUMENT", errors.InvalidRequest, "sequence from 1"),
}


@pytest.mark.parametrize("name", BAD_PUSHES)
def test_a_bad_push_is_a_typed_error_and_the_server_lives_on_unchanged(stub, cluster, name):
    changes, status, error, message = BAD_PUSHES[name]
    code, raised = call_error(stub.Push, push_request(stub, **changes))
    assert (code.name, type(raised)) == (status, error)
    assert message in str(raised)
    np.testing.assert_array_equal(
        cluster.pull({"sgd": mine(stub, 2)}).rows["sgd"], np.zeros((2, 2))
    )
    stub.Push(push_request(stub), timeout=30)
    np.testing.assert_array_equal(
        cluster.pull({"sgd": mine(stub, 2)}).rows["sgd"], -np.ones((2, 2))
    )


def test_duplicate_ids_in_a_raw_push_are_refused(stub):
    key = arrays.encode(np.repeat(mine(stub, 1), 2))
    assert type(call_error(stub.Push, push_request(stub, ids=key))[1]) is errors.DuplicateIds


def test_a_repeated_raw_push_is_applied_once(stub, cluster):
    for _ in range(3):
        stub.Push(push_request(stub), timeout=30)
    np.testing.assert_array_equal(
        cluster.pull({"sgd": mine(stub, 2)}).rows["sgd"], -np.ones((2, 2))
    )


def test_ids_of_another_server_are_refused(stub):
    foreign = IDS[stub.routing.owner_of(IDS) == 1][:2]
    code, raised = call_error(stub.Push, push_request(stub, ids=arrays.encode(foreign)))
    assert (code.name, type(raised)) == ("FAILED_PRECONDITION", errors.ShardNotOwned)


@pytest.mark.parametrize("keys", [b"1234567", b"x"])
def test_a_pull_with_malformed_ids_is_refused(stub, keys):
    tables = [pb.TableIds(table="sgd", ids=keys)]
    request = pb.PullRequest(epoch=stub.epoch, run_id=stub.routing.run_id, tables=tables)
    code, raised = call_error(stub.Pull, request)
    assert (code.name, type(raised)) == ("INVALID_ARGUMENT", errors.MalformedArray)


def test_an_unknown_kind_of_update_is_refused(stub):
    request = push_request(stub)
    request.variables.add(name="w", kind=9)
    assert "unknown kind of update 9" in str(call_error(stub.Push, request)[1])


def test_a_conflicting_table_is_refused_and_the_old_one_stays(cluster):
    cluster.push({"sgd": ([1], np.ones((1, 2), np.float32))})
    with pytest.raises(errors.TableConflict, match="use another name"):
        cluster.create_tables(TableConfig("sgd", (Segment(5, Zeros(), Sgd(1.0)),)))
    np.testing.assert_array_equal(cluster.pull({"sgd": [1]}).rows["sgd"], [[-1, -1]])


def test_status_lists_tables_and_variables(stub):
    status = stub.GetPsStatus(pb.GetPsStatusRequest(), timeout=30)
    assert [table.config.name for table in status.tables] == ["adagrad", "sgd"]
    assert set(status.variables) <= {"n", "w"}


def test_a_message_above_the_limit_is_refused_on_both_sides_and_the_server_lives_on(tmp_path):
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        servers.start_ps(0, server=ServerSettings(max_message_bytes=65536))
        careful, careless = servers.connect(max_message_bytes=65536), servers.connect()
        careful.create_tables(TableConfig("t", (Segment(2, Zeros(), Sgd(1.0)),)))
        big = (np.arange(10_000), np.ones((10_000, 2), np.float32))
        with pytest.raises(errors.MessageTooLarge, match="limit of 65536; send fewer ids"):
            careful.push({"t": big})
        with pytest.raises(errors.MessageTooLarge, match="the server's limit of 65536"):
            careless.push({"t": big})
        careful.push({"t": ([1], np.ones((1, 2), np.float32))})
        np.testing.assert_array_equal(careful.pull({"t": [1, 2]}).rows["t"], [[-1, -1], [0, 0]])

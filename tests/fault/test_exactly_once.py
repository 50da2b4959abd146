"""Every acknowledged push is in the tables once, to the last bit, whatever happens to connections.

Gradients are whole numbers and SGD has rate 1, so that sums are exact in any order.
MEGALITH_TEST_SOAK_S makes the storm longer than its few seconds.
"""

import os
import threading
import time

import numpy as np
import pytest

from megalith.client import Segment, Sgd, TableConfig, VariableConfig, connect
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.wire.channel import open_channel
from support.processes import Processes
from support.proxy import FaultyProxy

CLIENTS, IDS, DIM = 4, 3_000, 4
STORM_S = float(os.environ.get("MEGALITH_TEST_SOAK_S", "2"))
# Loopback as well: ps advertise it, the proxies listen there on the ports that ps have
PROXY_HOST = "127.0.0.2"
BIG = (40, 1000)  # 160 kB: split over both servers


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes


@pytest.fixture(scope="module")
def proxies(processes):
    """Two ps, each with a proxy before its gRPC port and one before its bulk lane."""
    processes.start_controller(num_ps=2, num_workers=0)
    for index in range(2):
        processes.start_member("ps", index, advertise_host=PROXY_HOST)
    opened = []
    routing = processes.job(60.0).routing(60.0)
    request = pb.NegotiateRequest(run_id=routing.run_id)
    for index, address in enumerate(routing.addresses):
        port = int(address.rpartition(":")[2])
        assert address == f"{PROXY_HOST}:{port}"
        with open_channel(f"127.0.0.1:{port}") as channel:
            terms = parameter_server_pb2_grpc.ParameterServerStub(channel).Negotiate(
                request, timeout=30
            )
        for number, each in enumerate((port, terms.lane_port)):
            opened.append(
                FaultyProxy((PROXY_HOST, each), ("127.0.0.1", each), seed=10 * index + number)
            )
    yield opened
    for proxy in opened:
        proxy.__exit__()


def train(cluster, name, seed, deadline, sums):
    """Push until the deadline, and add up what was acknowledged.

    Every other step is begun rather than waited for.
    """
    rng = np.random.default_rng(seed)
    while time.monotonic() < deadline or sums["pushes"] < 5:
        ids = rng.integers(0, IDS, 1_000)
        gradients = rng.integers(-8, 9, (ids.size, DIM)).astype(np.float32)
        big = rng.integers(-8, 9, BIG).astype(np.float32)
        content = {
            "gradients": {name: (ids, gradients)},
            "variable_gradients": {name: big},
            "add_to_variables": {f"{name}-count": 1},
        }
        added = rng.integers(-8, 9, (ids.size, DIM)).astype(np.float32)
        if sums["pushes"] % 2:
            pulled, pushed = cluster.begin_pull({name: ids}, [name]), cluster.begin_push(**content)
            cluster.add_to_rows({name: (ids, added)})  # waits for the push
            assert pushed.is_done
            pushed.result()
            assert pulled.result().rows[name].shape == (ids.size, DIM)
        else:
            cluster.pull({name: ids}, [name])
            cluster.push(**content)
            cluster.add_to_rows({name: (ids, added)})
        np.add.at(sums["rows"], ids, gradients - added)
        sums["big"] += big
        sums["pushes"] += 1


@pytest.mark.parametrize("name", ["lane", "unary"])
def test_the_sum_of_acknowledged_pushes_is_the_table_while_connections_are_cut_delayed_and_repeated(
    processes, proxies, name
):
    bulk_lane = name == "lane"
    before = sum(proxy.counts["cut requests"] + proxy.counts["cut replies"] for proxy in proxies)
    clients = [
        connect(model_dir=str(processes.model_dir), timeout_s=100, bulk_lane=bulk_lane)
        for _ in range(CLIENTS)
    ]
    clients[0].create_tables(TableConfig(name, (Segment(DIM, optimizer=Sgd(1.0)),)))
    clients[0].create_variables(
        VariableConfig(name, np.zeros(BIG, np.float32), Sgd(1.0)),
        VariableConfig(f"{name}-count", np.array(0)),
    )
    sums = [{"rows": np.zeros((IDS, DIM)), "big": np.zeros(BIG), "pushes": 0} for _ in clients]
    deadline = time.monotonic() + STORM_S
    threads = [
        threading.Thread(target=train, args=(client, name, seed, deadline, sums[seed]))
        for seed, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240 + STORM_S)
    assert not any(thread.is_alive() for thread in threads)

    felt = {what: sum(proxy.counts[what] for proxy in proxies) for what in proxies[0].counts}
    assert felt["cut requests"] + felt["cut replies"] > before
    with connect(model_dir=str(processes.model_dir), timeout_s=60, bulk_lane=False) as reader:
        pulled = reader.pull({name: np.arange(IDS)}, [name, f"{name}-count"])
    total = {key: sum(part[key] for part in sums) for key in ("rows", "big", "pushes")}
    assert total["pushes"] >= 5 * CLIENTS
    assert int(pulled.variables[f"{name}-count"]) == total["pushes"]
    np.testing.assert_array_equal(pulled.rows[name], -total["rows"])
    np.testing.assert_array_equal(pulled.variables[name], -total["big"])
    for client in clients:
        client.close()
    print(f"pushes={total['pushes']} {felt}")

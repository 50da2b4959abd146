"""Connecting to nothing, to the wrong thing, and to a cluster that is not complete yet."""

import socket
import threading
import time

import pytest

import megalith.client as mg
from megalith.control import Controller
from megalith.errors import InvalidRequest, PeerUnreachable
from support.servers import Servers


@pytest.mark.parametrize(
    "address", ["foo", "", "host:", ":7600", "host:0", "host:99999", "host:port", "::1:7600", "h:²"]
)
def test_an_address_that_is_none_is_refused_at_once(address):
    with pytest.raises(InvalidRequest, match="expected host:port"):
        mg.connect(address)
    with pytest.raises(InvalidRequest, match="expected host:port"):
        Controller(address, None, 60.0)


def test_a_dead_address_is_said_after_two_seconds_and_ends_within_the_time_given(caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, never listened to: nobody else gets the port
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(
            PeerUnreachable,
            match=f"no controller answers at {address} within 3 s .*correct the address",
        ):
            mg.connect(address, connect_timeout_s=3.0)
        assert time.monotonic() - began < 10
    assert any(
        "waiting up to 3 s" in record.message and address in record.message
        for record in caplog.records
    )


def test_a_wrong_model_directory_is_named(tmp_path):
    with pytest.raises(
        PeerUnreachable, match=f"{tmp_path}/nothing.*no controller serves this model directory"
    ):
        mg.connect(model_dir=str(tmp_path / "nothing"), connect_timeout_s=0.5)


def test_a_server_that_is_no_controller_is_said_to_be_none(servers):
    ps = servers.connect()._servers.routing().addresses[0]
    with pytest.raises(InvalidRequest, match=f"what answers at {ps} is not a Megalith controller"):
        mg.connect(ps)


def test_a_cluster_that_is_forming_is_waited_for_by_the_first_call(tmp_path):
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        with mg.connect(model_dir=str(tmp_path), connect_timeout_s=10.0) as cluster:
            assert cluster.controller.status().phase == "forming"
            servers.start_ps(0)
            cluster.create_tables(mg.TableConfig("late", (mg.Segment(1),)))


def test_without_a_time_to_connect_nobody_is_asked():
    mg.connect("127.0.0.1:1", connect_timeout_s=0).close()


def test_a_call_that_is_being_repeated_ends_soon_after_its_client_is_closed(tmp_path):
    ended = []

    def push(cluster):
        try:
            cluster.push({"t": ([1], [[1.0]])})
        except InvalidRequest as error:
            ended.append(error)

    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        servers.start_ps(0)
        cluster = mg.connect(model_dir=str(tmp_path), timeout_s=600.0)
        cluster.create_tables(mg.TableConfig("t", (mg.Segment(1),)))
        cluster.pull({"t": [1]})
    caller = threading.Thread(target=push, args=(cluster,))
    caller.start()
    time.sleep(0.5)  # all servers are gone: it is trying again by now, for up to ten minutes
    assert caller.is_alive()
    cluster.close(wait=False)
    caller.join(20)
    assert not caller.is_alive()
    assert "closed" in str(ended[0])

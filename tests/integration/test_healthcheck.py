"""The probe of containers, against servers that serve, do not serve, hang or are not there."""

import socket
import subprocess
import sys
import time

import pytest

from megalith.runtime import healthcheck
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.rpc.server import RpcServer, ServerSettings


@pytest.fixture
def server():
    server = RpcServer(ServerSettings(), Metrics(), {})
    server.start()
    yield server
    server.stop(0)


def test_a_serving_server_is_healthy_as_docker_asks_for_it(server):
    server.set_serving(True)
    command = [sys.executable, "-m", "megalith.runtime.healthcheck", server.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{server.address}: SERVING\n", "")


def test_a_server_that_is_not_ready_is_not_healthy(server, capsys):
    assert healthcheck.main([server.address]) == 1
    assert capsys.readouterr().err == f"{server.address}: NOT_SERVING\n"


def test_health_follows_the_server(server):
    server.set_serving(True)
    assert healthcheck.main([server.address]) == 0
    server.set_serving(False)
    assert healthcheck.main([server.address]) == 1


def test_an_address_where_nobody_listens_is_one_clear_line(capsys):
    with socket.socket() as held:  # bound, not listening: refused, and nobody else gets the port
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        assert healthcheck.main([address]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{address}: UNAVAILABLE: ")
    assert "Connection refused" in line


def test_a_server_that_hangs_is_given_up_after_2_seconds(capsys):
    with socket.socket() as hung:  # accepts connections, never answers
        hung.bind(("127.0.0.1", 0))
        hung.listen()
        address = f"127.0.0.1:{hung.getsockname()[1]}"
        started = time.monotonic()
        assert healthcheck.main([address]) == 1
    assert 1.9 < time.monotonic() - started < 20
    assert capsys.readouterr().err == f"{address}: no answer within 2 s\n"


@pytest.mark.parametrize("argv", [[], ["127.0.0.1:1", "127.0.0.1:2"]])
def test_wrong_usage_is_unhealthy_and_says_so(argv, capsys):
    assert healthcheck.main(argv) == 1
    assert capsys.readouterr().err == "usage: python -m megalith.runtime.healthcheck HOST:PORT\n"

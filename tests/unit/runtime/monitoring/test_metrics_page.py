import contextlib
import socket
import threading
import urllib.error
import urllib.request

import pytest

from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.monitoring.metrics_page import MetricsServer
from support.waiting import wait_until


@contextlib.contextmanager
def page(**settings):
    metrics = Metrics()
    metrics.gauge("megalith_answer", "Of everything.", lambda: 42)
    server = MetricsServer(metrics, "127.0.0.1", 0, **settings)
    port = server.start()
    try:
        yield port
    finally:
        server.stop()


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
        return response.read().decode()


@pytest.mark.parametrize("path", ["/", "/metrics", "/metrics?name[]=megalith_answer"])
def test_the_page_is_at_its_two_paths(path):
    with page() as port:
        assert "megalith_answer 42.0" in get(port, path)


def test_another_path_is_not_found():
    with page() as port, pytest.raises(urllib.error.HTTPError, match="404") as raised:
        get(port, "/metricz")
    raised.value.close()


def test_five_hundred_idle_connections_cost_few_threads_and_the_page_still_answers():
    before = threading.active_count()
    with page() as port:
        idle = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(500)]
        assert "megalith_answer 42.0" in get(port, "/metrics")
        wait_until(lambda: threading.active_count() - before < 20)
        assert "megalith_answer 42.0" in get(port, "/metrics")
        for sock in idle:
            sock.close()


def test_a_request_that_trickles_is_closed_in_time():
    with page(life_s=0.2) as port, socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.setblocking(False)

        def is_closed():
            try:
                sock.send(b"G")
                return sock.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        wait_until(is_closed)

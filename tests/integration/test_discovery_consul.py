"""Consul discovery against a real agent: expiry, agents that forget, unix sockets, machines that
are not let in."""

import contextlib
import http.server
import json
import socket
import socketserver
import threading
import time
import types
import urllib.request

import pytest

from megalith.discovery.consul import ConsulDiscovery
from megalith.discovery.consul_agent import agent_address
from megalith.errors import DiscoveryFailed
from support.back_ends import fresh_job, server_or_skip
from support.waiting import wait_until

ADDRESS = "10.0.0.1:1000"


@pytest.fixture
def agent():
    return server_or_skip("consul")


@pytest.fixture
def job():
    return fresh_job()


@pytest.fixture
def opened():
    opened = []

    def open_one(agent, job, **options):
        opened.append(
            ConsulDiscovery(agent, job, **{"poll_s": 0.02, "retry_wait_s": 0.02, **options})
        )
        return opened[-1]

    yield open_one
    for discovery in opened:
        discovery.close()


def ask(agent, path, method="GET", body=None):
    request = urllib.request.Request(
        f"http://{agent}/v1/{path}", data=body and json.dumps(body).encode(), method=method
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.closing(opener.open(request, timeout=30)) as reply:
        text = reply.read()
    return json.loads(text) if text.strip() else None


def test_consul_an_entry_is_an_instance_with_tags_and_a_ttl(opened, agent, job):
    opened(agent, job).register("ps", 3, ADDRESS)
    (instance,) = ask(agent, f"health/service/{job}")
    assert set(instance["Service"]["Tags"]) == {"index:3", "name:ps", "ip:10.0.0.1"}
    assert (instance["Service"]["Address"], instance["Service"]["Port"]) == ("10.0.0.1", 1000)
    (check,) = [check for check in instance["Checks"] if check["ServiceName"] == job]
    assert (check["Type"], check["Status"]) == ("ttl", "passing")


def test_consul_an_entry_that_is_renewed_while_it_is_deregistered_stays_away(
    opened, agent, job, monkeypatch
):
    discovery = opened(agent, job, ttl_s=1.0)
    discovery.register("ps", 0, ADDRESS)
    renew = discovery._renew
    is_renewing = threading.Event()

    def renew_late(*entry):
        is_renewing.set()
        time.sleep(0.3)
        renew(*entry)

    monkeypatch.setattr(discovery, "_renew", renew_late)
    assert is_renewing.wait(30)
    discovery.deregister("ps", 0, ADDRESS)
    time.sleep(0.5)
    assert ask(agent, f"health/service/{job}") == []


def test_consul_an_entry_that_cannot_be_given_up_is_said(opened, caplog, job):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    discovery = opened(f"127.0.0.1:{port}", job)
    discovery._own["ps", 0] = ADDRESS  # as if it had been entered while the agent was there
    discovery.close()
    assert f"ps-0 stays listed at {ADDRESS} until its 60 s are over" in caplog.text


class Agent(http.server.BaseHTTPRequestHandler):
    """What an agent does with one service, in memory; it hangs before it says that a check is not
    known."""

    def setup(self):
        super().setup()
        self.state = self.server.state

    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "/agent/service/register" in self.path:
            self.state.entries.append(json.loads(body))
        elif "/agent/service/deregister/" in self.path:
            self.state.entries.clear()
        elif "/agent/check/pass/" in self.path:
            self.state.is_hung.set()
            self.state.go_on.wait(30)
            self._reply(self.state.unknown, "unknown check")
            return
        self._reply(200, "")

    def do_GET(self):
        instances = [
            {
                "Service": {
                    "ID": entry["id"],
                    "Tags": entry["tags"],
                    "Port": entry["port"],
                },
                "Node": {"Node": "here"},
            }
            for entry in self.state.entries
        ]
        self._reply(200, json.dumps(instances))

    def _reply(self, status, text):
        self.send_response(status)
        self.send_header("X-Consul-Index", "1")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        """Nobody reads it."""


@pytest.fixture(params=[404, 500])
def forgetful(request):
    """An agent that knows no check: newer ones answer 404 then, older ones 500."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Agent) as agent:
        agent.state = types.SimpleNamespace(
            entries=[], is_hung=threading.Event(), go_on=threading.Event(), unknown=request.param
        )
        agent.daemon_threads = True
        threading.Thread(target=agent.serve_forever, daemon=True).start()
        yield agent
        agent.shutdown()


@pytest.mark.timeout(120)
def test_consul_an_agent_that_does_not_know_a_check_is_told_again_whatever_it_answers(
    opened, forgetful, job
):
    forgetful.state.go_on.set()
    discovery = opened(f"127.0.0.1:{forgetful.server_port}", job, ttl_s=0.5)
    discovery.register("ps", 0, ADDRESS)
    forgetful.state.entries.clear()  # as an agent that was restarted
    wait_until(lambda: forgetful.state.entries, what="it is told again")


@pytest.mark.timeout(120)
def test_consul_a_renewal_that_hangs_while_an_entry_is_given_up_does_not_enter_it_again(
    forgetful, job
):
    state = forgetful.state
    discovery = ConsulDiscovery(f"127.0.0.1:{forgetful.server_port}", job, ttl_s=0.5)
    discovery.register("ps", 0, ADDRESS)
    assert len(state.entries) == 1
    assert state.is_hung.wait(30)
    discovery.close()
    assert state.entries == []
    state.go_on.set()
    discovery._keeper.join(30)
    assert not discovery._keeper.is_alive()
    assert state.entries == []


def test_consul_an_entry_that_nobody_renews_expires_and_one_that_is_renewed_stays(
    opened, agent, job
):
    dying, living = opened(agent, job, ttl_s=1.0), opened(agent, job, ttl_s=5.0)
    dying.register("ps", 0, ADDRESS)
    living.register("ps", 1, "10.0.0.2:2")
    wait_until(lambda: living.query("ps") == {0: ADDRESS, 1: "10.0.0.2:2"}, what="both are renewed")
    dying._stopping.set()  # as a dead process: no renewal, and nothing is deregistered
    dying._keeper.join()
    wait_until(lambda: living.query("ps") == {1: "10.0.0.2:2"}, what="the TTL has run out")
    living.register("ps", 0, "10.0.0.3:3")
    assert living.query("ps") == {0: "10.0.0.3:3", 1: "10.0.0.2:2"}


def test_consul_an_agent_that_has_forgotten_the_entry_is_told_again(opened, agent, job):
    discovery = opened(agent, job, ttl_s=1.0)
    discovery.register("ps", 0, ADDRESS)
    (instance,) = ask(agent, f"health/service/{job}")
    ask(agent, f"agent/service/deregister/{instance['Service']['ID']}", "PUT")
    wait_until(lambda: discovery.query("ps") == {0: ADDRESS})


def test_consul_an_error_that_nobody_foresaw_does_not_end_the_renewals(
    opened, agent, job, monkeypatch, caplog
):
    discovery, failed = opened(agent, job, ttl_s=1.0), threading.Event()
    discovery.register("ps", 0, ADDRESS)

    def fail(*_):
        failed.set()
        raise TypeError("unheard of")

    with monkeypatch.context() as patched:
        patched.setattr(discovery, "_renew", fail)
        assert failed.wait(30)
        wait_until(lambda: "own entries are not renewed, trying again: unheard of" in caplog.text)
    (instance,) = ask(agent, f"health/service/{job}")
    ask(agent, f"agent/service/deregister/{instance['Service']['ID']}", "PUT")
    wait_until(lambda: discovery.query("ps") == {0: ADDRESS}, what="it renews again")


def test_consul_garbage_is_left_out_and_logged_once(opened, agent, job, caplog):
    discovery = opened(agent, job)
    discovery.register("ps", 0, ADDRESS)
    garbage = (
        ["index:x", "name:ps", "ip:h"],
        [],
        ["index:1", "name:ps", "ip:a b"],
        ["index:\u00b2", "name:ps", "ip:h"],
    )
    for number, tags in enumerate(garbage):
        body = {"Name": job, "ID": f"{job}-garbage-{number}", "Port": 1, "Tags": tags}
        ask(agent, "agent/service/register", "PUT", body)
    for _ in range(3):
        assert discovery.query_all() == {"ps": {0: ADDRESS}}
    assert sum("ignored an entry" in record.message for record in caplog.records) == 4


@contextlib.contextmanager
def hiding(agent):
    """An agent that takes registrations, and lists nothing among what is healthy."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if "/health/service/" in self.path and "passing" in self.path:
                self._reply(b"[]")
            else:
                self._forward(None)

        def do_PUT(self):
            self._forward(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _forward(self, body):
            url = f"http://{agent}{self.path}"
            request = urllib.request.Request(url, data=body, method=self.command)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with contextlib.closing(opener.open(request, timeout=30)) as reply:
                self._reply(reply.read())

        def _reply(self, body):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Consul-Index", "1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{proxy.server_port}"
        proxy.shutdown()
        thread.join()


@pytest.mark.golden("G12")
def test_consul_a_machine_that_is_not_shown_is_an_error(opened, agent, job):
    with hiding(agent) as proxy:
        discovery = opened(proxy, job, visible_s=0.1)
        with pytest.raises(DiscoveryFailed, match="This machine is blacklisted by consul"):
            discovery.register("ps", 0, ADDRESS)
        assert ask(agent, f"health/service/{job}") == []  # it is taken back
        discovery.close()


@pytest.mark.golden("G12")
def test_consul_a_dead_agent_is_an_error_after_five_tries(opened):
    discovery, tries = opened("127.0.0.1:1", "job"), []
    real = discovery._ask_once
    discovery._ask_once = lambda *arguments, **options: (
        tries.append(1),
        real(*arguments, **options),
    )[1]
    with pytest.raises(DiscoveryFailed, match=r"Consul agent 127.0.0.1:1"):
        discovery.query("ps")
    assert len(tries) == 5


@pytest.mark.golden("G12")
def test_consul_an_agent_that_hangs_is_an_error_after_five_tries(opened):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        discovery, tries = opened(address, "job", timeout_s=0.1), []
        real = discovery._ask_once
        discovery._ask_once = lambda *arguments, **options: (
            tries.append(1),
            real(*arguments, **options),
        )[1]
        with pytest.raises(DiscoveryFailed, match=f"Consul agent {address}"):
            discovery.query("ps")
        assert len(tries) == 5


def test_consul_is_reached_through_a_unix_socket(opened, agent, job, tmp_path):
    path = tmp_path / "consul.sock"
    with forwarding(path, agent):
        assert agent_address({}, str(path)) == str(path)
        discovery = opened(str(path), job)
        discovery.register("ps", 0, "[::1]:1000")
        assert discovery.query("ps") == {0: "[::1]:1000"}
        discovery.close()
    assert opened(agent, job).query_all() == {}


@contextlib.contextmanager
def forwarding(path, agent):
    """A unix socket in front of the agent."""
    host, _, port = agent.rpartition(":")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            with socket.create_connection((host, int(port))) as upstream:
                back = threading.Thread(target=pump, args=(upstream, self.request))
                back.start()
                pump(self.request, upstream)
                back.join()

    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.mark.golden("G33")
def test_consul_what_was_registered_is_looked_up_with_port_host_and_index(opened, agent, job):
    discovery = opened(agent, job)
    discovery.register("ps", 0, "192.168.0.1:1234")
    assert decoded(ask(agent, f"health/service/{job}?passing")) == [
        {"Port": 1234, "Host": "192.168.0.1", "Tags": {"index": "0"}}
    ]
    assert discovery.query_all() == {"ps": {0: "192.168.0.1:1234"}}
    discovery.deregister("ps", 0, "192.168.0.1:1234")
    assert decoded(ask(agent, f"health/service/{job}?passing")) == []
    assert discovery.query_all() == {}


def decoded(instances):
    """What a stock agent answers, as Monolith's client decodes it."""
    found = []
    for instance in instances:
        service = instance["Service"]
        tags = dict(tag.split(":", 1) for tag in service["Tags"])
        assert (tags.pop("name"), tags.pop("ip")) == ("ps", service["Address"])
        found.append({"Port": service["Port"], "Host": service["Address"], "Tags": tags})
    return found

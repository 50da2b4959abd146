"""ZooKeeper discovery against a real server: what others write there, lost sessions, credentials,
cleaning up."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError

from megalith.discovery.zookeeper import STALE_S, ZooKeeperDiscovery
from megalith.errors import DiscoveryFailed
from support.back_ends import OwnZooKeeper, fresh_job, server_or_skip
from support.waiting import wait_until

ADDRESS = "10.0.0.1:1000"


@pytest.fixture
def server():
    return server_or_skip("zookeeper")


@pytest.fixture
def job():
    return fresh_job()


@pytest.fixture
def opened():
    opened = []

    def open_one(servers, job, **options):
        opened.append(ZooKeeperDiscovery(servers, job, **{"retry_delay_s": 0.05, **options}))
        return opened[-1]

    yield open_one
    for discovery in opened:
        discovery.close()


@pytest.fixture
def stranger(server):
    """A client that does with the nodes what it likes."""
    client = KazooClient(server)
    client.start()
    yield client
    client.stop()
    client.close()


def expire_session(discovery, server):
    """Make the server end the session of `discovery`, as after a long silence.

    A double takes the session over and closes it. The client takes it back when it is quicker; then
    once more.
    """
    session = wait_until(lambda: discovery._client.client_id)

    def is_over():
        double = KazooClient(server, client_id=session)
        double.start()
        double.stop()
        double.close()
        return discovery._client.client_id not in (None, session)

    wait_until(is_over, what="another session")


def test_zookeeper_an_entry_is_an_ephemeral_node_with_the_address(opened, server, job, stranger):
    opened(server, job).register("ps", 3, ADDRESS)
    content, stat = stranger.get(f"/monolith/{job}/ps.3")
    assert content == ADDRESS.encode()
    assert stat.ephemeralOwner != 0


def test_zookeeper_garbage_is_left_out_and_logged_once(opened, server, job, stranger, caplog):
    discovery = opened(server, job)
    discovery.register("ps", 0, ADDRESS)
    for child, content in {
        "ps.1": b"\xff\xfe\x00",
        "ps.2": b"",
        "ps.x": b"h:1",
        "lock": b"",
        "ps.4": b"a b c",
    }.items():
        stranger.create(f"/monolith/{job}/{child}", content)
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: len(caplog.records) >= 4 or discovery.query_all() is None)
        for _ in range(3):
            discovery._is_stale.set()
            assert discovery.query_all() == {"ps": {0: ADDRESS}}
    assert (
        sum("ignored an entry" in record.message for record in caplog.records) == 4
    )  # an empty node is no entry yet


def test_zookeeper_the_first_entry_of_a_job_is_seen_also_when_it_comes_in_the_middle_of_a_look(
    opened, server, job, monkeypatch
):
    first, discovery = opened(server, job), opened(server, job)
    assert discovery._is_connected.wait(30)  # or that would be the reason for another look
    wait_for_the_job = discovery._client.exists_async

    def enter_first(path, **options):
        first.register("controller", 0, ADDRESS)
        return wait_for_the_job(path, **options)

    monkeypatch.setattr(discovery._client, "exists_async", enter_first)
    assert wait_until(lambda: discovery.query("controller")) == {0: ADDRESS}


@pytest.mark.golden("G12")
def test_zookeeper_corrupted_data_is_repaired_periodically(opened, server, job, stranger):
    discovery = opened(server, job, reregister_s=0.01)
    discovery.register("ps", 0, ADDRESS)
    stranger.set(f"/monolith/{job}/ps.0", b"corrupted")
    wait_until(lambda: stranger.get(f"/monolith/{job}/ps.0")[0] == ADDRESS.encode())
    stranger.delete(f"/monolith/{job}/ps.0")
    wait_until(lambda: discovery.query("ps") == {0: ADDRESS})


@pytest.mark.golden("G12")
def test_zookeeper_a_lost_session_keeps_the_entry(opened, server, job, stranger):
    discovery, other = opened(server, job), opened(server, job)
    discovery.register("ps", 0, ADDRESS)
    session = stranger.get(f"/monolith/{job}/ps.0")[1].ephemeralOwner
    expire_session(discovery, server)
    wait_until(
        lambda: node_owner(stranger, f"/monolith/{job}/ps.0") not in (0, session),
        what="a node of a new session",
    )
    wait_until(lambda: discovery.query("ps") == other.query("ps") == {0: ADDRESS})


def test_zookeeper_an_entry_that_is_renewed_while_it_is_deregistered_stays_away(
    opened, server, job, stranger, monkeypatch
):
    discovery = opened(server, job, reregister_s=0.01)
    discovery.register("ps", 0, ADDRESS)
    write = discovery._write
    is_renewing = threading.Event()

    def write_late(*entry):
        is_renewing.set()
        time.sleep(0.3)
        write(*entry)

    monkeypatch.setattr(discovery, "_write", write_late)
    assert is_renewing.wait(30)
    discovery.deregister("ps", 0, ADDRESS)
    time.sleep(0.5)
    assert stranger.exists(f"/monolith/{job}/ps.0") is None


@pytest.fixture
def renewed_after_a_look(stranger, monkeypatch):
    """Has a stranger write each node right after a discovery has looked at it."""

    def interpose(discovery):
        look = discovery._client.get_async

        def look_then_renew(path, **options):
            answer = look(path, **options)
            answer.get(timeout=10)
            stranger.set(path, b"10.0.0.2:2")
            return answer

        monkeypatch.setattr(discovery._client, "get_async", look_then_renew)

    return interpose


def test_zookeeper_a_node_that_is_written_while_it_is_deregistered_stays(
    opened, server, job, stranger, renewed_after_a_look
):
    discovery = opened(server, job)
    discovery.register("ps", 0, ADDRESS)
    renewed_after_a_look(discovery)
    discovery.deregister("ps", 0, ADDRESS)
    assert stranger.get(f"/monolith/{job}/ps.0")[0] == b"10.0.0.2:2"


def test_zookeeper_a_node_that_is_written_while_it_is_replaced_stays_and_the_error_says_why(
    opened, server, job, stranger, renewed_after_a_look
):
    opened(server, job).register("ps", 0, "10.0.0.9:9")
    discovery = opened(server, job)
    wait_until(lambda: discovery.query("ps") == {0: "10.0.0.9:9"})
    renewed_after_a_look(discovery)
    with pytest.raises(DiscoveryFailed, match=r"changes under our hands; is ps-0 started twice"):
        discovery.register("ps", 0, ADDRESS)
    assert stranger.get(f"/monolith/{job}/ps.0")[0] == b"10.0.0.2:2"


def node_owner(client, path):
    stat = client.exists(path)
    return stat.ephemeralOwner if stat else 0


def test_zookeeper_the_node_of_a_dying_session_is_replaced_and_not_taken_along(opened, server, job):
    old, new = opened(server, job), opened(server, job)
    old.register("ps", 0, "10.0.0.9:9")
    new.register("ps", 0, ADDRESS)
    with old._lock:
        old._own.clear()  # as a dead process: it does not come back
    expire_session(old, server)
    wait_until(lambda: new.query("ps") == {0: ADDRESS})
    new._is_stale.set()
    assert new.query("ps") == {0: ADDRESS}


def test_zookeeper_with_credentials_only_their_owner_changes_entries(opened, server, job, stranger):
    first, second = opened(server, job, auth="me:secret"), opened(server, job, auth="me:secret")
    first.register("ps", 0, ADDRESS)
    assert stranger.get(f"/monolith/{job}/ps.0")[0] == ADDRESS.encode()
    with pytest.raises(NoAuthError):
        stranger.set(f"/monolith/{job}/ps.0", b"10.6.6.6:1")
    with pytest.raises(DiscoveryFailed, match="NoAuth"):
        opened(server, job).register("ps", 0, "10.6.6.6:1")
    second.register("ps", 0, "10.0.0.2:2")
    wait_until(lambda: first.query("ps") == {0: "10.0.0.2:2"})


def test_zookeeper_stale_paths_go_after_nine_weeks_unless_a_process_is_registered_there(
    opened, server, stranger
):
    empty, running, mine = fresh_job(), fresh_job(), fresh_job()
    stranger.ensure_path(f"/monolith/{empty}/left/behind")
    opened(server, running).register("ps", 0, ADDRESS)
    discovery = opened(server, mine)
    discovery.register("ps", 0, ADDRESS)
    discovery.clean_up(now=lambda: time.time() + STALE_S - 60)
    assert stranger.exists(f"/monolith/{empty}")
    discovery.clean_up(now=lambda: time.time() + STALE_S + 60)
    assert not stranger.exists(f"/monolith/{empty}")
    assert stranger.exists(f"/monolith/{running}/ps.0")
    assert stranger.exists(f"/monolith/{mine}/ps.0")


def test_zookeeper_a_job_s_own_path_is_removed_and_no_other(opened, server, job, stranger):
    other = fresh_job()
    opened(server, other).register("ps", 0, ADDRESS)
    discovery = opened(server, job)
    discovery.deregister_all()  # nothing is there
    discovery.register("ps", 0, ADDRESS)
    assert stranger.exists(f"/monolith/{job}/ps.0")
    discovery.deregister_all()
    assert not stranger.exists(f"/monolith/{job}")
    assert stranger.exists(f"/monolith/{other}/ps.0")


def test_zookeeper_that_answers_no_more_leaves_the_entries_last_seen_and_says_so_once(
    opened, monkeypatch, caplog
):
    discovery = opened("127.0.0.1:1", "job")
    seen = {"ps": {0: "10.0.0.1:1"}}
    answers = [seen, DiscoveryFailed("late"), DiscoveryFailed("late"), {}]

    def read():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(discovery, "_read", read)
    monkeypatch.setattr(discovery, "_is_connected", SimpleNamespace(is_set=lambda: True))
    for expected in (seen, seen, seen, {}):
        discovery._is_stale.set()
        assert discovery.query_all() == expected
    assert caplog.text.count("late; the entries last seen stand") == 1
    monkeypatch.undo()


def test_zookeeper_that_does_not_answer_is_an_error_with_its_address(opened):
    discovery = opened("127.0.0.1:1", "job", timeout_s=0.1)
    with pytest.raises(DiscoveryFailed, match=r"no ZooKeeper answers at 127.0.0.1:1"):
        discovery.query("ps")
    with pytest.raises(DiscoveryFailed, match=r"no ZooKeeper answers at 127.0.0.1:1"):
        discovery.register("ps", 0, ADDRESS)


def test_zookeeper_a_job_that_is_cleared_while_an_entry_is_made_only_delays_it(
    opened, server, job, monkeypatch
):
    discovery = opened(server, job)
    write, failures = discovery._write_node, [NoNodeError(), NodeExistsError()]

    def fail_twice(*node):
        if failures:
            raise failures.pop()
        write(*node)

    monkeypatch.setattr(discovery, "_write_node", fail_twice)
    discovery.register("ps", 0, ADDRESS)
    wait_until(lambda: discovery.query("ps") == {0: ADDRESS})


def test_zookeeper_entries_are_kept_after_a_renewal_that_failed(
    opened, server, job, stranger, monkeypatch, caplog
):
    discovery = opened(server, job, reregister_s=0.01)
    discovery.register("ps", 0, ADDRESS)
    failures = []

    def fail():
        failures.append(1)
        raise RuntimeError("unheard of")

    with monkeypatch.context() as patched:
        patched.setattr(
            KazooClient, "client_id", None
        )  # as in the moment in which the connection is lost
        wait_until(lambda: "the connection to ZooKeeper" in caplog.text)
    with monkeypatch.context() as patched:
        patched.setattr(discovery, "_write_own", fail)
        wait_until(lambda: failures)
    stranger.delete(f"/monolith/{job}/ps.0")
    wait_until(lambda: stranger.exists(f"/monolith/{job}/ps.0"))


def test_zookeeper_server_killed_and_restarted_keeps_entries_and_forgotten_ones_are_entered_again(
    opened, job, tmp_path, caplog
):
    server = OwnZooKeeper(tmp_path / "zk")
    server.start()
    try:
        discovery, other = (opened(server.address, job, session_timeout_s=2.0) for _ in range(2))
        discovery.register("ps", 0, ADDRESS)
        wait_until(lambda: other.query("ps") == {0: ADDRESS})
        for does_it_forget in (False, True):
            caplog.clear()
            server.kill()
            wait_until(
                lambda: not other._is_connected.is_set() and not discovery._is_connected.is_set()
            )
            assert other.query("ps") == {0: ADDRESS}, "the entries last seen stand"
            if does_it_forget:
                server.forget()
            server.start()
            wait_until(
                lambda: other._is_connected.is_set() and discovery._is_connected.is_set(), 90
            )
            wait_until(lambda: other.query("ps") == {0: ADDRESS})
            other.register("worker", 0, "10.0.0.2:2")
            wait_until(lambda: discovery.query("worker") == {0: "10.0.0.2:2"})
            tries = [record for record in caplog.records if "kazoo" in record.name]
            assert not tries, [
                record.message for record in tries
            ]  # said once by the listener, not at every try
    finally:
        server.close()

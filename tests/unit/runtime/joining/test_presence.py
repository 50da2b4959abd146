import threading

import pytest

from megalith.discovery.interface import Discovery
from megalith.discovery.settings import DiscoverySettings
from megalith.errors import DiscoveryFailed, IndexTaken, PeerUnreachable
from megalith.runtime.joining import lease, presence
from megalith.runtime.joining.presence import Presence, assigned
from megalith.runtime.rpc.server import ServerSettings
from support.waiting import wait_until


class Registry(Discovery):
    """A back end in memory that can be away."""

    def __init__(self, entries=None):
        super().__init__()
        self.entries, self.is_away, self.is_closed = entries or {}, False, False
        self.tried = threading.Event()

    def _register(self, name, index, address):
        self.tried.set()
        self._answer()
        self.entries.setdefault(name, {})[index] = address

    def _deregister(self, name, index, address):
        self.entries[name].pop(index)

    def _query_all(self):
        self._answer()
        return self.entries

    def _answer(self):
        if self.is_away:
            raise DiscoveryFailed("away")

    def deregister_all(self):
        self.entries.clear()

    def close(self):
        self.is_closed = True


def test_the_controller_is_found_as_given_then_by_the_back_end_then_in_the_model_directory(
    tmp_path,
):
    (tmp_path / "controller_server_addr.txt").write_text("file:1")
    registry = Registry({"controller": {0: "registry:1"}})
    assert Presence("ps", 0, registry, "given:1", str(tmp_path)).find_controller() == "given:1"
    by_registry = Presence("ps", 0, registry, "", str(tmp_path))
    assert by_registry.find_controller() == "registry:1"
    registry.is_away = True
    assert by_registry.find_controller() == "file:1"
    registry.is_away, registry.entries = False, {}
    assert by_registry.find_controller() == "file:1"
    with pytest.raises(
        PeerUnreachable, match="no controller is registered; is a controller running"
    ):
        Presence("ps", 0, registry, "", "").find_controller()
    with pytest.raises(PeerUnreachable, match=r"no controller_server_addr.txt in /nowhere"):
        Presence("ps", 0, None, "", "/nowhere").find_controller()


class Hung(Registry):
    """A back end that hangs, once it is told to, until it is let go."""

    def __init__(self, entries):
        super().__init__(entries)
        self.asked = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def _answer(self):
        self.asked += 1
        self.go_on.wait(30)


def test_the_controller_is_asked_at_least_once_before_its_silence_counts():
    longest_pause_between_tries_s = 1.0
    assert presence._LOOK_S + longest_pause_between_tries_s < lease.SILENCE_S


@pytest.mark.timeout(20)
def test_a_back_end_that_hangs_keeps_nobody_from_asking_the_controller_where_it_last_was(tmp_path):
    registry = Hung({"controller": {0: "registry:1"}})
    here = Presence("ps", 0, registry, "", str(tmp_path))
    assert here.find_controller() == "registry:1"

    registry.go_on.clear()
    for _ in range(3):
        assert here.find_controller() == "registry:1"
    assert registry.asked == 2, "the open question is not asked again"
    (tmp_path / "controller_server_addr.txt").write_text("file:1")
    assert here.find_controller() == "file:1", "what somebody has written is newer"

    registry.entries = {"controller": {0: "registry:2"}}
    registry.go_on.set()
    wait_until(lambda: here.find_controller() == "registry:2")


def test_an_answer_that_nobody_waited_for_is_not_taken_much_later(monkeypatch):
    registry = Hung({"controller": {0: "registry:1"}})
    here = Presence("ps", 0, registry, "", "")
    assert here.find_controller() == "registry:1"
    registry.go_on.clear()
    assert here.find_controller() == "registry:1"
    registry.go_on.set()
    wait_until(lambda: "find-controller" not in [each.name for each in threading.enumerate()])
    registry.entries = {"controller": {0: "registry:2"}}
    monkeypatch.setattr(presence, "_FRESH_S", 0.0)
    assert here.find_controller() == "registry:2"


def test_a_model_directory_that_cannot_be_read_now_is_looked_at_again(tmp_path):
    path = tmp_path / "controller_server_addr.txt"
    here = Presence("ps", 0, None, "", str(tmp_path))
    path.write_bytes(b"\xff")  # nobody's text
    with pytest.raises(PeerUnreachable, match="cannot be read"):
        here.find_controller()
    path.unlink()
    path.mkdir()  # an OSError, as of a file server that is away
    with pytest.raises(PeerUnreachable, match="cannot be read"):
        here.find_controller()
    path.rmdir()
    path.write_text("file:1")
    assert here.find_controller() == "file:1"


def test_a_back_end_that_is_away_is_logged_once_and_entered_when_it_is_back(caplog, monkeypatch):
    monkeypatch.setattr(presence, "_RETRY_S", 0.01)
    registry = Registry()
    registry.is_away = True
    here = Presence("ps", 3, registry, "", "")
    here.announce("me:1")
    here.announce("me:1")
    for _ in range(3):
        registry.tried.clear()
        assert registry.tried.wait(30)
    registry.is_away = False
    wait_until(lambda: registry.entries == {"ps": {3: "me:1"}})
    here.stop()
    assert registry.is_closed
    assert sum("not registered yet" in record.message for record in caplog.records) == 1


def test_an_error_that_no_back_end_should_raise_does_not_end_the_tries(caplog, monkeypatch):
    monkeypatch.setattr(presence, "_RETRY_S", 0.01)
    registry, answer = Registry(), Registry._answer
    failures = [TypeError("'NoneType' object is not subscriptable")] * 2

    def fail_twice():
        if failures:
            raise failures.pop()
        answer(registry)

    registry._answer = fail_twice
    here = Presence("ps", 3, registry, "", "")
    here.announce("me:1")
    wait_until(lambda: registry.entries == {"ps": {3: "me:1"}})
    here.stop()
    (said,) = [record for record in caplog.records if "not registered yet" in record.message]
    assert said.exc_info


def test_a_stop_does_not_wait_for_a_back_end_that_is_away():
    registry = Registry()
    registry.is_away = True
    here = Presence("ps", 3, registry, "", "")
    here.announce("me:1")
    assert registry.tried.wait(30)
    here.stop()
    assert not here._entering.is_alive()


def test_another_process_in_the_same_place_is_refused_only_while_it_answers(monkeypatch):
    registry = Registry({"controller": {0: "127.0.0.1:1"}})
    here = Presence("controller", 0, registry, "", "")
    here.check_alone("127.0.0.1:2")  # nobody listens at port 1
    monkeypatch.setattr(
        presence.liveness, "probe", lambda asked: presence.liveness.Liveness(tuple(asked), ())
    )
    here.check_alone("127.0.0.1:1")  # that is this one
    with pytest.raises(IndexTaken, match=r"listens at 127.0.0.1:1"):
        here.check_alone("127.0.0.1:2")
    registry.is_away = True
    here.check_alone("127.0.0.1:2")


@pytest.mark.parametrize(
    ("given", "prescribed", "bound"),
    [
        ("10.1.2.3", "10.1.2.3:7700", "10.1.2.3"),
        ("127.0.0.1", "10.1.2.3:7700", "127.0.0.1"),
        ("", "10.1.2.3:7700", "0.0.0.0"),
        ("", "127.0.0.1:7700", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1:7700", "0.0.0.0"),
    ],
)
def test_a_host_that_is_given_is_bound_whatever_the_platform_prescribes(given, prescribed, bound):
    settings = DiscoverySettings(discovery=f"static:ps={prescribed}")
    _, server = assigned("ps", 0, ServerSettings(host=given), settings)
    assert server.bind_host == bound
    assert (server.port, server.advertise_host) == (7700, prescribed.partition(":")[0])

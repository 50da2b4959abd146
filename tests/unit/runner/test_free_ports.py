import socket

import pytest

from megalith.errors import LimitExceeded
from megalith.runner import free_ports as module
from megalith.runner.free_ports import free_ports


def given_by_the_system():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def test_ports_are_free_and_different_and_none_is_one_that_the_system_gives_away(monkeypatch):
    ports = free_ports(50)
    assert len(set(ports)) == 50
    low, high = module._given_range()
    assert not [port for port in ports if low <= port <= high]
    assert all(low <= given_by_the_system() <= high for _ in range(50))
    for port in ports:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def test_a_port_in_use_is_left_out(tmp_path, monkeypatch):
    first, *others = free_ports(3)
    monkeypatch.setattr(
        module.random.SystemRandom, "sample", lambda self, ports, count: [first, *others]
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        assert free_ports(1) == others[:1]
        with pytest.raises(
            LimitExceeded, match=r"3 free ports on 127.0.0.1 are needed, 2 were found"
        ):
            free_ports(3)


@pytest.mark.parametrize("content", [None, "1024 65535", "nonsense"])
def test_where_the_system_gives_all_ports_away_or_does_not_say_there_are_ports_too(
    tmp_path, monkeypatch, content
):
    monkeypatch.setattr(module, "_RANGE_FILE", tmp_path / "range")
    if content:
        (tmp_path / "range").write_text(content)
    assert len(free_ports(2)) == 2

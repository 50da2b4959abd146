import itertools

import pytest

from megalith.discovery import liveness


@pytest.mark.golden("G2")
def test_alive_and_dead_partition_what_was_asked():
    asked = [f"host{index}:10" for index in range(5)]
    failing = {"host1", "host3"}

    def connect(address, timeout_s):
        assert timeout_s == 0.5
        if address[0] in failing:
            raise TimeoutError("simulated")

    answer = liveness.probe(asked, 0.5, connect)
    assert answer.alive == ("host0:10", "host2:10", "host4:10")
    assert answer.dead == ("host1:10", "host3:10")
    assert not answer.are_all_alive
    for outcome in itertools.product([False, True], repeat=5):
        failing = {f"host{index}" for index, fails in enumerate(outcome) if fails}
        answer = liveness.probe(asked, 0.5, connect)
        assert {*answer.alive} | {*answer.dead} == {*asked}
        assert {*answer.dead} == {f"{host}:10" for host in failing}
        assert len(answer.alive) + len(answer.dead) == 5
        assert answer.are_all_alive == (not failing)


def test_a_real_probe_finds_who_listens_and_calls_nonsense_dead():
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        here = f"127.0.0.1:{server.getsockname()[1]}"
        assert liveness.probe([here, "127.0.0.1:1", "nonsense"]) == liveness.Liveness(
            (here,), ("127.0.0.1:1", "nonsense")
        )


def test_nobody_asked_means_all_are_alive():
    assert liveness.probe([]).are_all_alive

"""Writes are before or after a closing of the gate, never in the middle."""

import threading

from megalith.ps.store.write_gate import WriteGate
from support.waiting import wait_until


def test_writes_pass_side_by_side():
    gate = WriteGate()
    with gate.passing(), gate.passing():
        pass


def test_whoever_closes_waits_for_those_inside_and_holds_up_the_others():
    gate = WriteGate()
    said = []
    inside = threading.Event()
    go_on = threading.Event()

    def write_first():
        with gate.passing():
            inside.set()
            go_on.wait(10)
            said.append("first write")

    def close():
        with gate.closed():
            said.append("closed")

    def write_second():
        with gate.passing():
            said.append("second write")

    first = threading.Thread(target=write_first)
    first.start()
    assert inside.wait(10)
    closing = threading.Thread(target=close)
    closing.start()
    wait_until(lambda: gate._is_closed)
    second = threading.Thread(target=write_second)
    second.start()
    assert said == []
    go_on.set()
    for thread in (first, closing, second):
        thread.join(10)
    assert said == ["first write", "closed", "second write"]


def test_a_write_that_fails_leaves_the_gate():
    gate = WriteGate()
    try:
        with gate.passing():
            raise ValueError
    except ValueError:
        pass
    with gate.closed():
        pass
    with gate.passing():
        pass

"""Changes that several replicas are sent are made once, and a slow replica delays nobody."""

import threading

import numpy as np

from megalith.ps.following import shared_changes
from megalith.ps.following.shared_changes import SharedChanges, Span
from megalith.ps.following.versions import Dropped
from megalith.schema import FixedR8, Fp32

SPAN = Span("t", ((1, Fp32()),), 0, 1, 2)


def dropped(count):
    return Dropped("t", np.arange(count))


def test_the_same_span_is_made_once():
    shared = SharedChanges()
    calls = []

    def make():
        calls.append(1)
        yield dropped(3)
        yield dropped(4)

    first = list(shared.of(SPAN, make))
    second = list(shared.of(SPAN, make))
    assert len(calls) == 1
    assert [event.ids.size for event in first] == [3, 4]
    assert first == second


def test_another_span_is_made_anew():
    shared = SharedChanges()
    list(shared.of(SPAN, lambda: iter([dropped(3)])))
    later = list(shared.of(SPAN._replace(through=3), lambda: iter([dropped(5)])))
    other_log = list(shared.of(SPAN._replace(log=1 << 40), lambda: iter([dropped(6)])))
    assert [event.ids.size for event in later + other_log] == [5, 6]


def test_rows_that_are_written_otherwise_are_made_anew():
    """The compressor was changed and changed back, and a replica asked in between."""
    shared = SharedChanges()
    in_between = SPAN._replace(row=((1, FixedR8(1.0)),))
    list(shared.of(in_between, lambda: iter([dropped(3)])))
    again = list(shared.of(SPAN, lambda: iter([dropped(5)])))
    assert [event.ids.size for event in again] == [5]


def test_large_changes_are_passed_on_whole_and_not_kept(monkeypatch):
    monkeypatch.setattr(shared_changes, "_MOST_BYTES", 8 * 10)
    shared = SharedChanges()
    calls = []

    def make():
        calls.append(1)
        yield from (dropped(6), dropped(6), dropped(6))

    for _ in range(2):
        assert [event.ids.size for event in shared.of(SPAN, make)] == [6, 6, 6]
    assert len(calls) == 2


def test_a_replica_that_takes_its_changes_slowly_does_not_hold_another_up():
    shared = SharedChanges()
    slow = shared.of(SPAN, lambda: iter([dropped(3), dropped(4)]))
    next(slow)
    done = []
    other = threading.Thread(target=lambda: done.append(list(shared.of(SPAN, lambda: iter([])))))
    other.start()
    other.join(10)
    assert [event.ids.size for event in done[0]] == [3, 4]
    assert [event.ids.size for event in slow] == [4]


def test_what_is_kept_of_many_tables_is_bounded(monkeypatch):
    monkeypatch.setattr(shared_changes, "_KEPT_BYTES", 100)
    shared = SharedChanges()
    for table in ("a", "b", "c"):
        list(shared.of(SPAN._replace(table=table), lambda: iter([dropped(5)])))
    assert list(shared._kept) == ["b", "c"]
    assert shared._kept_bytes == 80

"""The delta log tells every id whose row changed, whatever else happens to it."""

import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from megalith.engine.table import delta_log
from megalith.engine.table import writer as writing
from megalith.engine.table.delta_log import DeltaLog
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import ChangesForgotten
from megalith.schema import Segment, Sgd, TableConfig, Zeros
from support import at_size
from support.delta import take_changes


def table_of(capacity: int = 100_000) -> EmbeddingTable:
    return EmbeddingTable(
        TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), touched_capacity=capacity)
    )


def push(table: EmbeddingTable, keys) -> None:
    keys = np.asarray(keys, np.int64)
    table.apply_gradients(keys, np.ones((keys.size, 1), np.float32), req_time_s=1000)


def test_an_id_is_told_once_for_each_steal() -> None:
    table = table_of()
    for _ in range(2):
        push(table, [1, 2])
        push(table, [2, 3])
        assert take_changes(table).tolist() == [1, 2, 3]
        assert take_changes(table).size == 0


def test_assign_add_and_reinitialize_touch_too() -> None:
    table, one = table_of(), np.ones((1, 1), np.float32)
    for write in (
        lambda keys: table.assign(keys, one),
        lambda keys: table.assign_add(keys, one),
        table.reinitialize,
    ):
        for _ in range(2):  # a new row, and one that is there
            write(np.array([7]))
            assert take_changes(table).tolist() == [7]


def test_loading_rows_touches_nothing_but_rows_left_out_as_expired_do() -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), expire_days=1))
    times = np.array([1, 3 * 86400], np.int64)
    table.load(np.array([1, 2]), np.ones((2, 1), np.float32), times, drop_expired=True)
    assert take_changes(table).tolist() == [1]


def test_an_id_that_was_dropped_is_told_and_has_no_row() -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), expire_days=1))
    old, new = np.array([1, 2]), np.array([3])
    table.assign(old, np.ones((2, 1), np.float32), 1000)
    table.assign(new, np.ones((1, 1), np.float32), 1000 + 86400)
    take_changes(table)
    assert table.expire() == 2
    assert take_changes(table).tolist() == [1, 2]
    assert table.erase(np.array([3, 4])) == 1
    changed = take_changes(table)
    assert changed.tolist() == [3]
    assert not table.contains(changed).any()


def test_an_id_dropped_and_made_again_is_told_once() -> None:
    table = table_of()
    push(table, [1])
    table.erase(np.array([1]))
    push(table, [1])
    assert take_changes(table).tolist() == [1]


def test_after_all_rows_were_dropped_at_once_a_reader_is_told_to_copy_all() -> None:
    table = table_of()
    push(table, [1])
    last = table.changes.seal()
    table.clear()
    push(table, [2])
    table.changes.seal()
    with pytest.raises(ChangesForgotten, match=f"after set {last} "):
        table.changes.read(last)
    push(table, [2])
    assert take_changes(table).tolist() == [2]


def test_bits_survive_growth() -> None:
    table, keys = table_of(), np.arange(50_000)
    push(table, keys[:100])
    push(table, keys)
    assert take_changes(table).tolist() == keys.tolist()


def test_what_falls_off_is_counted_and_a_reader_behind_it_is_told() -> None:
    table = table_of(10)
    log = table.changes
    push(table, np.arange(6))
    first = log.seal()
    push(table, np.arange(4, 10))  # 12 ids in two sets: the first set goes
    second = log.seal()
    assert (log.forgotten, log.size) == (6, 6)
    with pytest.raises(ChangesForgotten, match="touched_capacity"):
        log.read(log.begin)
    assert log.read(first).tolist() == list(range(4, 10))
    push(table, np.arange(100, 111))  # more than the log holds, so the open set goes too
    assert (log.forgotten, log.size) == (6 + 6 + 11, 0)
    third = log.seal()
    with pytest.raises(ChangesForgotten, match=f"after set {second} "):
        log.read(second)
    push(table, [5, 100])
    log.seal()
    assert log.read(third).tolist() == [5, 100]


def test_each_reader_gets_what_it_has_not_acknowledged() -> None:
    table = table_of()
    log = table.changes
    push(table, [1])
    first = log.seal()
    log.acknowledge("replica", log.begin)
    log.acknowledge("increments", first)
    push(table, [1, 2])
    second = log.seal()
    assert log.read(log.begin).tolist() == [1, 2]
    assert log.read(first).tolist() == [1, 2]
    log.acknowledge("increments", second)
    assert log.size == 3, "the replica has seen nothing"
    log.acknowledge("replica", first)
    assert log.size == 2
    log.dismiss("replica")
    assert log.size == 0
    with pytest.raises(ChangesForgotten, match="sets up to"):
        log.read(first)


def test_without_a_log_nobody_is_told_that_nothing_changed() -> None:
    table = table_of(0)
    push(table, [1])
    assert table.changes.size == 0
    table.changes.seal()
    with pytest.raises(ChangesForgotten):
        table.changes.read(table.changes.begin)
    table.reconfigure(TableConfig("t", table.config.segments, touched_capacity=10))
    push(table, [1])
    assert take_changes(table).tolist() == [1]


def test_a_number_of_a_log_means_nothing_to_another_one() -> None:
    """A table of the same name may have taken the place of one that was dropped."""
    old, new = table_of(), table_of()
    push(old, [1])
    last = old.changes.seal()
    for _ in range(3):
        push(new, [2])
        new.changes.seal()
    with pytest.raises(ChangesForgotten):
        new.changes.read(last)


def test_lack_of_memory_loses_the_set_and_not_the_write(monkeypatch) -> None:
    table = table_of()
    push(table, [1])

    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(table.changes, "_open", np.empty(1, np.int64))
    with monkeypatch.context() as patched:
        patched.setattr(delta_log, "np", SimpleNamespace(empty=no_memory, int64=np.int64))
        table.changes.note(np.array([2]))
    assert table.changes.forgotten == 2


def test_no_change_is_lost_between_writers_and_a_thief() -> None:
    """A copy that reads the stolen ids ends up equal to the table."""
    table, keys, copy, stop = (
        table_of(),
        np.arange(5000),
        np.zeros(5000, np.float32),
        threading.Event(),
    )

    def write(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(150):
            push(table, rng.choice(keys, 700, replace=False))

    def follow() -> None:
        while not stop.is_set():
            stolen = take_changes(table)
            copy[stolen] = table.lookup(stolen)[:, 0]

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    thief = threading.Thread(target=follow)
    for thread in [*writers, thief]:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    thief.join()
    stolen = take_changes(table)
    copy[stolen] = table.lookup(stolen)[:, 0]
    np.testing.assert_array_equal(copy, table.lookup(keys)[:, 0])
    assert copy.sum() == -3 * 150 * 700


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_no_touched_id_is_lost_at_size_while_sets_are_sealed(order: str) -> None:
    """Two writers and one that drops rows, 300,000 ids, beside a reader that seals all the time.

    The reader's copy ends up equal to the table, rows that are gone included.
    """
    keys = at_size.ids_in(order, 300_000)
    place = np.argsort(keys)
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),)))
    copy = np.zeros(keys.size, np.float32)
    is_held = np.zeros(keys.size, np.bool_)
    stop = threading.Event()
    told = [0]

    def write(part: int) -> None:
        rng = np.random.default_rng(part)
        for _ in range(3):
            for batch in np.array_split(rng.permutation(keys[part::2]), 40):
                push(table, batch)

    def drop() -> None:
        rng = np.random.default_rng(7)
        for _ in range(60):
            table.erase(rng.choice(keys, 2000, replace=False))

    def follow_once() -> None:
        changed = take_changes(table)
        at = place[np.searchsorted(keys, changed, sorter=place)]
        entries = table.lookup_entry(changed)
        copy[at] = entries.values[:, 0]
        is_held[at] = entries.times >= 0
        told[0] += changed.size

    def follow() -> None:
        while not stop.is_set():
            follow_once()

    writers = [threading.Thread(target=write, args=(part,)) for part in range(2)]
    writers.append(threading.Thread(target=drop))
    reader = threading.Thread(target=follow)
    for thread in [*writers, reader]:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    follow_once()

    np.testing.assert_array_equal(is_held, table.contains(keys))
    np.testing.assert_array_equal(copy, table.lookup(keys)[:, 0])
    assert np.count_nonzero(is_held) == table.size
    assert told[0] >= keys.size


def test_sealing_while_nothing_changes_takes_no_memory() -> None:
    """A replica that is away for ten minutes costs 2,400 empty sets of each table otherwise."""
    log = table_of().changes
    begin = log.join("away")
    for _ in range(2400):
        log.seal()
    assert log.newest == begin + 2400
    assert log.read(begin).size == 0
    assert not log._sealed


def test_who_joins_finds_every_later_change_though_others_acknowledge() -> None:
    table = table_of()
    push(table, [1])
    table.changes.seal()
    joined = table.changes.join("late")
    push(table, [2])
    table.changes.acknowledge("other", table.changes.seal())
    assert table.changes.read(joined).tolist() == [2]


def no_memory(*_, **__):
    raise MemoryError


@pytest.mark.parametrize("when", ["sealing", "keeping what was sealed"])
def test_a_set_that_cannot_be_sealed_is_forgotten_and_later_changes_are_told(monkeypatch, when):
    table = table_of()
    log = table.changes
    push(table, [1, 2, 3])
    seen = log.seal()
    push(table, [1, 2])
    with monkeypatch.context() as patch:
        if when == "sealing":
            patch.setattr(delta_log.bits, "lift", no_memory)
        else:
            patch.setattr(DeltaLog, "_append_sealed", no_memory)
        with pytest.raises(MemoryError):
            log.seal()

    forgotten = log.forgotten
    assert forgotten == 2
    push(table, [3, 4])
    log.seal()
    with pytest.raises(ChangesForgotten):
        log.read(seen)

    push(table, [1, 3])
    after = log.newest
    log.seal()
    assert log.read(after).tolist() == [1, 3]


@pytest.mark.parametrize("action", ["write", "make room", "try again"])
def test_a_write_that_fails_half_way_notes_the_rows_that_it_changed(monkeypatch, action):
    """Their touched bits are set, so nobody would note them again."""
    config = TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), memory_budget_bytes=1 << 20)
    table = EmbeddingTable(config)
    real = writing.write.write

    def fails_afterwards(*arguments):
        real(*arguments)
        raise MemoryError

    if action == "write":
        monkeypatch.setattr(writing.write, "write", fails_afterwards)
    elif action == "make room":
        monkeypatch.setattr(writing.Writer, "_make_room", no_memory)
    else:
        monkeypatch.setattr(writing.Writer, "_make_room", lambda _: fails_at_second_write())

        def fails_at_second_write():
            monkeypatch.setattr(writing.write, "write", no_memory)
            return True

    ids = np.arange(100_000)
    with pytest.raises(MemoryError):
        push(table, ids)

    monkeypatch.undo()
    written = ids[table.contains(ids)]
    assert written.size > 0
    np.testing.assert_array_equal(take_changes(table), written)
    push(table, written[:2])
    np.testing.assert_array_equal(take_changes(table), written[:2])


def test_a_set_knows_the_oldest_time_of_the_data_that_changed_it():
    table = table_of()
    log = table.changes

    def write(time_s, *ids):
        ids = np.array(ids, np.int64)
        table.assign(ids, np.ones((ids.size, 1), np.float32), time_s)

    begin = log.newest
    write(0, 1)
    assert log.oldest_event_after(begin) == math.inf
    first = log.seal()
    assert log.oldest_event_after(begin) == math.inf
    write(5000, 1, 2)
    write(4000, 1)  # its id is in the set already
    write(6000, 3)
    write(0, 4)
    second = log.seal()
    write(7000, 5)
    third = log.seal()
    assert log.oldest_event_after(begin) == 4000
    assert log.oldest_event_after(first) == 4000
    assert log.oldest_event_after(second) == 7000
    assert log.oldest_event_after(third) == math.inf


def test_the_times_of_forgotten_sets_are_known_until_all_readers_are_behind_them():
    table = table_of(10)
    log = table.changes
    log.acknowledge("slow", log.newest)
    since = log.newest

    def write(time_s, ids):
        table.assign(ids, np.ones((ids.size, 1), np.float32), time_s)

    before_s = time.monotonic()
    write(4000, np.arange(8))
    first = log.seal()
    between_s = time.monotonic()
    write(5000, np.arange(100, 108))  # the first set goes
    second = log.seal()
    after_s = time.monotonic()
    write(6000, np.arange(200, 220))  # all go, the open one too
    third = log.seal()
    write(7000, np.arange(1))
    fourth = log.seal()

    assert before_s <= log.oldest_after(since) <= between_s
    assert between_s <= log.oldest_after(first) <= after_s
    assert log.oldest_after(second) >= after_s
    events = [log.oldest_event_after(number) for number in (since, first, second, third)]
    assert events == [4000, 5000, 6000, 7000]
    assert log.oldest_after(fourth) == log.oldest_event_after(fourth) == math.inf

    log.acknowledge("slow", third)
    assert log.oldest_event_after(since) == 7000
    assert not log._times_forgotten


def test_the_times_of_many_forgotten_sets_take_little_memory_and_are_never_too_late():
    table = table_of(1)
    log = table.changes
    log.acknowledge("slow", log.newest)
    numbers = []
    for number in range(1000):
        table.assign(np.array([1, 2]), np.ones((2, 1), np.float32), 1000 + number)
        numbers.append(log.seal())

    assert len(log._times_forgotten) <= 256
    events = [log.oldest_event_after(number - 1) for number in numbers]
    assert events[0] == 1000
    assert events[-200:] == list(range(1800, 2000))
    assert all(event <= 1000 + number for number, event in enumerate(events))


def test_rows_that_were_dropped_at_once_have_a_time():
    table = table_of()
    push(table, [1])
    since = table.changes.seal()
    before_s = time.monotonic()
    table.clear()
    cleared_s = time.monotonic()
    assert before_s <= table.changes.oldest_after(since) <= cleared_s

    push(table, [1])
    table.changes.seal()
    table.clear()  # that set goes too
    assert before_s <= table.changes.oldest_after(since) <= cleared_s
    assert cleared_s <= table.changes.oldest_after(since + 1) <= time.monotonic()

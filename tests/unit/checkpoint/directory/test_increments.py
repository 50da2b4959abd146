"""A checkpoint and its increments give back what a server held at the last of them."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from megalith.checkpoint.directory.increments import read_chain
from megalith.checkpoint.format import MANIFEST, FileKind
from megalith.checkpoint.layout import blocks, manifest
from megalith.checkpoint.moving import copying
from megalith.checkpoint.restoring import read_ahead
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.restoring.served_rows import ServedRowsLoading
from megalith.checkpoint.saving.increment import save_increment, seal_all
from megalith.checkpoint.storage.location import locate
from megalith.checkpoint.storage.object_store import ObjectStore
from megalith.engine.serving_table import ServingTable
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import UpdateKind
from megalith.errors import (
    ChangesForgotten,
    LimitExceeded,
    OutcomeLost,
    SequenceExpired,
)
from megalith.ps.store.chain import ChainPositions, Position
from megalith.ps.store.remembered_client import WINDOW
from megalith.ps.store.store import Store
from megalith.ps.store.writes import Sender, TableGradients, TableValues, VariableUpdate
from megalith.schema import (
    AdmissionConfig,
    FilterKind,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    VariableConfig,
)
from megalith.wire import routing
from support import at_size, object_stores
from support.chains import DIM, Chain, assert_same, config, contents, mine, restored, routed, train
from support.waiting import wait_until

DAY_S = 86400
INCARNATION = 2**64 - 1


def test_a_restore_from_an_object_store_asks_for_some_files_at_once(tmp_path, monkeypatch):
    """One after the other, a long chain would take the way to the store some hundred times."""
    stores = routed(2)
    for store in stores:
        store.adopt(table=EmbeddingTable(config()))
    ids = np.arange(1000)
    train(stores, ids)
    chain = Chain(stores, tmp_path)
    chain.save()
    for turn in range(20):
        train(stores, ids[turn * 10 :])
        for store in stores:
            store.tables()[0].erase(ids[turn : turn + 1])
        chain.increment()

    base = locate(copying.copy(chain.base, object_stores.new_folder("memory")).path)
    lock = threading.Lock()
    under_way = []
    most = []
    tried = ObjectStore._tried

    def slowly_tried(store, url, call):
        with lock:
            under_way.append(url)
            most.append(len(under_way))
        time.sleep(0.001)
        try:
            return tried(store, url, call)
        finally:
            with lock:
                under_way.remove(url)

    monkeypatch.setattr(ObjectStore, "_tried", slowly_tried)
    stores_again, reports = restored(base, 2)
    assert_same(contents(stores_again), contents(stores))
    assert [report.increments for report in reports] == [20, 20]
    assert 8 < max(most) <= 16
    object_stores.forget_memory()


@pytest.mark.parametrize("who", ["a ps", "a replica"])
def test_the_next_increments_are_read_while_one_is_put_in(tmp_path, monkeypatch, who):
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config()))
    ids = np.arange(1000)
    train(stores, ids)
    chain = Chain(stores, tmp_path)
    chain.save()
    for turn in range(6):
        train(stores, ids[turn * 10 :])
        chain.increment()

    lock = threading.Lock()
    under_way = []
    at_once = []
    read = blocks.read

    def slowly_read(directory, file, block):
        if not block.rows:  # the heads of all files are read at once before
            return read(directory, file, block)

        with lock:
            under_way.append(directory)
            at_once.append(len(set(under_way)))
        time.sleep(0.01)
        try:
            return read(directory, file, block)
        finally:
            with lock:
                under_way.remove(directory)

    monkeypatch.setattr(blocks, "read", slowly_read)
    if who == "a ps":
        stores_again, _ = restored(chain.base, 1)
        assert_same(contents(stores_again), contents(stores))
    else:
        rows_served(chain.base)
    assert max(at_once) >= 4


def rows_served(base):
    """The rows that a replica with all ids has of a chain: ids and embeddings."""
    tables = []

    def begin_table(config):
        tables.append(ServingTable(config))
        return tables[-1]

    loading = ServedRowsLoading(
        read_chain(base), np.ones(routing.NUM_BUCKETS, np.bool_), begin_table, lambda: None
    )
    loading.load()
    ids = np.sort(np.concatenate(list(tables[0].ids())))
    return ids, tables[0].lookup(ids)


@pytest.mark.parametrize("most_bytes", [0, 200_000])
def test_changes_that_are_not_read_ahead_come_in_the_same_order(tmp_path, monkeypatch, most_bytes):
    """At size, and with files of which only some may be read ahead."""
    monkeypatch.setattr(read_ahead, "MOST_BYTES", most_bytes)
    stores = routed(2)
    for store in stores:
        store.adopt(table=EmbeddingTable(config()))
    ids = np.random.default_rng(8).choice(2**62, 300_000, replace=False)
    train(stores, ids)
    chain = Chain(stores, tmp_path)
    chain.save()
    for turn, size in enumerate((100_000, 1_000, 300_000, 2_000, 5_000)):
        train(stores, ids[:size])
        for store in stores:
            store.tables()[0].erase(ids[turn * 100 : turn * 100 + 50])
        chain.increment()

    expected = contents(stores)
    stores_again, _ = restored(chain.base, 3)
    assert_same(contents(stores_again), expected)
    served_ids, served = rows_served(chain.base)
    np.testing.assert_array_equal(served_ids, expected[0])
    np.testing.assert_array_equal(served, expected[1][:, :DIM])


def test_a_chain_is_called_by_the_number_of_its_increments(tmp_path):
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config()))
    chain = Chain(stores, tmp_path)
    chain.save()
    assert str(read_chain(chain.base)) == str(chain.base)

    for words in ("with 1 increment", "with 2 increments"):
        train(stores, np.arange(5))
        chain.increment()
        assert str(read_chain(chain.base)) == f"{chain.base} {words}"


@pytest.mark.parametrize(("order", "num_ps"), [("random", 1), ("sorted", 2), ("random", 3)])
def test_base_and_increments_give_back_every_row_at_any_number_of_servers(tmp_path, order, num_ps):
    """300,000 rows; between saves some change, some are new, some are dropped, some come back."""
    ids = at_size.ids_in(order, 330_000)
    stores = routed(2)
    for store in stores:
        store.adopt(table=EmbeddingTable(config()))
    train(stores, ids[:300_000])
    chain = Chain(stores, tmp_path)
    chain.save()
    rng = np.random.default_rng(0)
    for turn in range(3):
        train(stores, rng.choice(ids[:300_000], 3000, replace=False))
        train(stores, ids[300_000 + turn * 10_000 :][:10_000])
        gone = rng.choice(ids[:300_000], 2000, replace=False)
        for store in stores:
            store.tables()[0].erase(gone)
        train(stores, gone[:500])
        chain.increment()
    expected = contents(stores)
    train(stores, ids[:100])  # after the last increment: lost

    after, reports = restored(chain.base, num_ps)
    assert_same(contents(after), expected)
    num_rows = expected[0].size
    assert read_chain(chain.base).last.rows == num_rows
    assert sum(report.rows for report in reports) == num_rows
    assert {report.increments for report in reports} == {3}
    assert {report.step for report in reports} == {4}


@pytest.mark.parametrize("order", ["random", "sorted"])
@pytest.mark.parametrize("is_budget_raised", [False, True])
def test_a_full_table_that_dropped_rows_and_made_others_comes_back(
    tmp_path, order, is_budget_raised
):
    """300,000 rows fill the budget. What comes back in between would be more than it has room for."""
    budget = 20 << 20
    ids = at_size.ids_in(order, 650_000)
    stores = routed(1)
    table = EmbeddingTable(config(memory_budget_bytes=budget))
    stores[0].adopt(table=table)
    train(stores, ids[:600_000])
    assert table.stats().refused
    assert len(table) > 300_000
    chain = Chain(stores, tmp_path)
    chain.save()
    if is_budget_raised:
        table.reconfigure(config(memory_budget_bytes=2 * budget))
    else:
        table.erase(table.dump(limit=50_000).ids)
    train(stores, ids[600_000:])
    chain.increment()
    expected = contents(stores)
    after, (report,) = restored(chain.base, 1)
    assert_same(contents(after), expected)
    assert report.rows == expected[0].size
    (restored_table,) = after[0].tables()
    assert restored_table.config == table.config
    assert restored_table.num_over_budget == 0


def test_rows_of_two_servers_that_one_has_no_room_for_stop_the_restore(tmp_path):
    stores = routed(2)
    for store in stores:
        store.adopt(table=EmbeddingTable(config(memory_budget_bytes=1 << 20)))
    ids = np.arange(1, 60_000)
    train(stores, ids)
    chain = Chain(stores, tmp_path)
    chain.save()
    train(stores, ids[:10])
    chain.increment()
    with pytest.raises(
        LimitExceeded, match=r"memory_budget_bytes of 1048576.*--restore-over-budget"
    ):
        restored(chain.base, 1)
    store = Store(0)
    report = restore_shard(store, chain.base, routing.even_owners(1), 0, over_budget=True)
    assert report.rows == contents(stores)[0].size


def test_an_increment_has_only_what_changed(tmp_path):
    ids = np.arange(50_000)
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config()))
    train(stores, ids)
    chain = Chain(stores, tmp_path)
    chain.save()
    train(stores, ids[:100])
    stores[0].tables()[0].erase(ids[100:130])
    chain.increment()
    last = read_chain(chain.base).last
    rows = {file.kind: file.rows for file in last.files}
    assert (rows[FileKind.TABLE], rows[FileKind.DROPPED]) == (100, 30)
    assert last.rows == 50_000 - 30
    chain.increment()
    rows = {file.kind: file.rows for file in read_chain(chain.base).last.files}
    assert (rows[FileKind.TABLE], rows[FileKind.DROPPED]) == (0, 0)


def test_a_table_and_variables_made_after_the_base_come_back(tmp_path):
    stores = routed(2)
    for store in stores:
        store.adopt(table=EmbeddingTable(config()))
    chain = Chain(stores, tmp_path)
    chain.save()
    for store in stores:
        store.create_tables(1, [config("u")])
    train(stores, np.arange(500), table="u")
    index = routing.part_owner(routing.even_owners(2), 2, "w", 0)
    stores[index].create_variables(1, [VariableConfig("w", np.zeros(3, np.float32), Sgd(1.0))])
    stores[index].variables()[0].apply(UpdateKind.GRADIENT, np.ones(3, np.float32))
    chain.increment()

    after, _ = restored(chain.base, 3)
    assert_same(contents(after, "u"), contents(stores, "u"))
    assert contents(after, "u")[0].tolist() == list(range(500))
    (variable,) = [each for store in after for each in store.variables()]
    np.testing.assert_array_equal(variable.read(), [-1, -1, -1])


def test_rows_that_expire_by_the_last_increment_are_dropped_and_counted(tmp_path):
    """One row of the base gets a new time in the increment, and stays."""
    stores = routed(2)
    for store in stores:
        store.adopt(table=EmbeddingTable(config(expire_days=1)))
    ids = np.arange(1000)
    train(stores, ids, time_s=DAY_S)
    chain = Chain(stores, tmp_path)
    chain.save()
    train(stores, ids[:300], time_s=3 * DAY_S)
    chain.increment()
    after, reports = restored(chain.base, 3)
    assert contents(after)[0].tolist() == ids[:300].tolist()
    assert sum(report.expired for report in reports) == 700
    assert (
        sum(report.rows + report.expired for report in reports) == read_chain(chain.base).last.rows
    )

    # What was dropped then is dropped in the chain too when it goes on.
    going_on = Chain(after, tmp_path)
    going_on.sets = [{} for _ in after]  # since they were restored
    going_on.number = 1
    train(after, np.array([5000]), time_s=3 * DAY_S)
    going_on.increment()
    again, reports = restored(chain.base, 2)
    assert contents(again)[0].tolist() == [*ids[:300].tolist(), 5000]
    assert (
        sum(report.rows + report.expired for report in reports)
        == read_chain(chain.base).last.rows
        == 301
    )


def test_rows_expire_by_the_settings_of_the_last_increment(tmp_path):
    """A program that gives rows more days keeps those that the old settings would drop."""
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config(expire_days=1)))
    ids = np.arange(20)
    train(stores, ids, time_s=100 * DAY_S)
    chain = Chain(stores, tmp_path)
    chain.save()
    stores[0].create_tables(1, [config(expire_days=30)])
    train(stores, ids[10:], time_s=110 * DAY_S)
    chain.increment()
    after, (report,) = restored(chain.base, 1)
    assert (report.rows, report.expired) == (20, 0)
    assert_same(contents(after), contents(stores))

    stores[0].create_tables(1, [config(expire_days=1)])
    chain.increment()
    after, (report,) = restored(chain.base, 1)
    assert (report.rows, report.expired) == (10, 10)
    assert contents(after)[0].tolist() == ids[10:].tolist()


# --- admission filters ---


def counting(**settings):
    rule = AdmissionConfig(kind=FilterKind.SLIDING, default_threshold=3, capacity=40_000)
    return config(admission=rule, **settings)


@pytest.mark.parametrize("num_ps", [2, 3])
def test_sightings_after_an_increment_are_those_at_that_increment(tmp_path, num_ps):
    ids = np.arange(300)
    stores = routed(2)
    for store in stores:
        store.adopt(table=EmbeddingTable(counting()))
    chain = Chain(stores, tmp_path)
    train(stores, ids)
    chain.save()
    for _ in range(2):  # three sightings in all: the next one makes a row
        train(stores, ids)
        chain.increment()

    early = contents(stores)[0]  # cells do not tell all ids apart
    assert early.size < 20
    barred = np.setdiff1d(ids, early)
    after, _ = restored(chain.base, num_ps)
    np.testing.assert_array_equal(contents(after)[0], early)
    for index, store in enumerate(after):
        own = mine(index, num_ps, barred)
        assert store.tables()[0].admission.counts_of(own).min() >= 3

    train(after, ids)
    assert sum(store.rows for store in after) == ids.size


def test_increments_of_early_versions_leave_the_sightings_of_the_checkpoint(tmp_path):
    (store,) = routed(1)
    store.adopt(table=EmbeddingTable(counting()))
    chain = Chain([store], tmp_path)
    train([store], np.arange(10))
    chain.save()
    train([store], np.arange(10))
    folder = chain.increment()
    saved = manifest.read(folder)
    old = tuple(file for file in saved.files if file.kind is not FileKind.FILTER)
    assert len(old) < len(saved.files)
    manifest.write(folder, replace(saved, files=old))
    (after,), _ = restored(chain.base, 1)
    counts = after.tables()[0].admission.counts_of(np.arange(10))
    assert counts.tolist() == [1] * 10


# --- positions ---


def test_an_order_says_which_of_several_saves_has_become_complete():
    (store,) = routed(1)
    store.adopt(table=EmbeddingTable(config()))
    table = store.tables()[0]
    positions = ChainPositions(store)
    train([store], np.arange(5))
    first = seal_all(store)
    positions.add(Position("a", 0), first)
    train([store], np.arange(5, 8))
    positions.add(Position("b", 0), seal_all(store))  # it failed on another server
    train([store], np.arange(8, 9))
    table.changes.seal()
    assert positions.sets_at("a", 0) == first
    assert table.changes.read(first["t"]).tolist() == [5, 6, 7, 8]
    with pytest.raises(ChangesForgotten, match="increment 0 of save b"):
        positions.sets_at("b", 0)


def test_an_increment_that_failed_elsewhere_is_made_again_with_all_its_changes():
    (store,) = routed(1)
    store.adopt(table=EmbeddingTable(config()))
    positions = ChainPositions(store)
    positions.add(Position("a", 0), seal_all(store))
    train([store], np.arange(5))
    positions.sets_at("a", 0)
    positions.add(Position("a", 1), seal_all(store))
    train([store], np.arange(5, 8))
    sets = positions.sets_at("a", 0)  # number 1 is asked for once more
    table = store.tables()[0]
    table.changes.seal()
    assert table.changes.read(sets["t"]).tolist() == list(range(8))


@pytest.mark.parametrize("is_made_again", [False, True])
def test_after_a_table_was_dropped_only_a_full_save_is_right(tmp_path, is_made_again):
    (store,) = routed(1)
    for name in ("t", "u"):
        store.adopt(table=EmbeddingTable(config(name)))
    positions = ChainPositions(store)
    positions.restored("a", 3)
    store.drop_table("u")
    if is_made_again:
        store.create_tables(1, [config("u")])
        sets = positions.sets_at("a", 3)
        with pytest.raises(ChangesForgotten):
            save_increment(store, sets, tmp_path, "i", 0, 1)
    else:
        with pytest.raises(ChangesForgotten, match=r"tables \['u'\] were dropped"):
            positions.sets_at("a", 3)


@pytest.mark.parametrize("name", ["t", "new"])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_table_that_is_dropped_while_an_increment_is_written_leaves_no_increment(
    tmp_path, name, is_made_again
):
    """The pushes that the increment names would be of the table that was made again."""

    class DroppingStore(Store):
        def cut(self):
            self._contents.drop_table(name)
            if is_made_again:
                self.create_tables(1, [config(name)])
                train([self], np.arange(3), table=name)
            return super().cut()

    store = DroppingStore(0)
    store.route(routing.Routing(1, ("a",), routing.even_owners(1), "run"), is_initialized=True)
    store.adopt(table=EmbeddingTable(config()))
    sets = seal_all(store)
    store.adopt(table=EmbeddingTable(config("new")))
    train([store], np.arange(5), table=name)
    with pytest.raises(ChangesForgotten, match=f"table {name} was dropped"):
        save_increment(store, sets, tmp_path, "i", 0, 1)
    assert not list(tmp_path.iterdir())


# --- applied pushes ---


def push(store, sequence, ids, client="c", is_repeated=False, with_step=False):
    ids = np.asarray(ids, np.int64)
    gradients = [TableGradients("t", ids, np.ones((ids.size, DIM), np.float32))]
    updates = [VariableUpdate("steps", UpdateKind.ADD, np.array(1))] if with_step else []
    sender = Sender(client, sequence, INCARNATION, is_repeated=is_repeated)
    return store.push(store.epoch, sender, gradients, updates)


def add_to_row_9(store, sequence):
    values = TableValues("t", np.array([9]), np.ones((1, DIM), np.float32))
    store.assign(store.epoch, Sender("c", sequence, INCARNATION), [values], is_added=True)


def one_store():
    (store,) = routed(1)
    store.create_tables(1, [TableConfig("t", (Segment(DIM, RandomUniform(), Sgd(1.0)),))])
    store.create_variables(1, [VariableConfig("steps", np.array(0), None)])
    return store


def test_a_push_before_the_increment_is_not_applied_again_by_the_replacement(tmp_path):
    store = one_store()
    chain = Chain([store], tmp_path)
    push(store, 1, [1, 2])
    chain.save()
    push(store, 2, [2, 3], with_step=True)
    add_to_row_9(store, 3)
    store.reinitialize(1, Sender("c", 4, INCARNATION), "t", np.array([10]))
    chain.increment()
    before = store.tables()[0].lookup(np.arange(12))

    (after,), _ = restored(chain.base, 1)
    table = after.tables()[0]
    push(after, 1, [1, 2], is_repeated=True)
    (steps,) = push(after, 2, [2, 3], is_repeated=True, with_step=True)
    assert steps == 1, "a repetition is answered with the values of now"
    add_to_row_9(after, 3)
    with pytest.raises(SequenceExpired, match="was applied"):
        after.reinitialize(2, Sender("c", 4, INCARNATION), "t", np.array([10]))
    np.testing.assert_array_equal(table.lookup(np.arange(12)), before)
    push(after, 5, [1])
    np.testing.assert_array_equal(table.lookup(np.array([1])), before[1:2] - 1)


def push_to_successor(store, sequence, ids):
    gradients = [TableGradients("t", np.asarray(ids), np.ones((len(ids), DIM), np.float32))]
    sender = Sender("c", sequence, INCARNATION, is_repeated=True, reached_predecessor=True)
    store.push(store.epoch, sender, gradients, [])


def forget_applied(base):
    """As checkpoints of early versions are, which have no pushes."""
    content = manifest.read(base)
    files = tuple(file for file in content.files if file.kind is not FileKind.APPLIED)
    (base / MANIFEST).unlink()
    manifest.write(base, replace(content, files=files))


def test_a_replacement_finishes_open_pushes_only_if_its_files_say_what_is_in_its_rows(tmp_path):
    store = one_store()
    chain = Chain([store], tmp_path)
    push(store, 1, [1, 2])
    chain.save()
    forget_applied(chain.base)
    (after,), _ = restored(chain.base, 1)
    for sequence in (1, 2):
        with pytest.raises(OutcomeLost, match="does not say which pushes are in it"):
            push_to_successor(after, sequence, [1, 2])

    push(store, 2, [2, 3])
    chain.increment()
    at_increment = store.tables()[0].lookup(np.arange(4))
    (after,), _ = restored(chain.base, 1)
    push_to_successor(after, 2, [2, 3])
    np.testing.assert_array_equal(after.tables()[0].lookup(np.arange(4)), at_increment)
    push_to_successor(after, 3, [2, 3])
    expected = at_increment - np.array([[0], [0], [1], [1]], np.float32)
    np.testing.assert_array_equal(after.tables()[0].lookup(np.arange(4)), expected)


def test_a_push_before_a_full_save_is_not_applied_again_and_a_later_one_is_applied(tmp_path):
    store = one_store()
    chain = Chain([store], tmp_path)
    push(store, 1, [1, 2])
    add_to_row_9(store, 2)
    chain.save()
    at_save = store.tables()[0].lookup(np.arange(12))
    push(store, 3, [1, 2])

    (after,), _ = restored(chain.base, 1)
    table = after.tables()[0]
    push_to_successor(after, 1, [1, 2])
    add_to_row_9(after, 2)
    np.testing.assert_array_equal(table.lookup(np.arange(12)), at_save)
    push_to_successor(after, 3, [1, 2])
    expected = at_save[:4] - np.array([[0], [1], [1], [0]], np.float32)
    np.testing.assert_array_equal(table.lookup(np.arange(4)), expected)


def test_no_push_counts_twice_after_a_full_save_under_load_and_what_is_not_known_is_said(tmp_path):
    """Three clients push 300,000 rows while they are saved. Each repeats all it has pushed."""
    store = one_store()
    ids = np.arange(300_000)
    store.tables()[0].assign(ids, np.zeros((ids.size, DIM), np.float32))
    chain = Chain([store], tmp_path)
    stop = threading.Event()
    sent = [[] for _ in range(3)]

    def train_on(number):
        rng = np.random.default_rng(number)
        while not stop.is_set():
            batch = rng.choice(ids, 5_000, replace=False)
            sent[number].append(batch)
            push(store, len(sent[number]), batch, client=f"c{number}")

    threads = [threading.Thread(target=train_on, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(len(batches) > 2 for batches in sent))
    acknowledged = [len(batches) - 1 for batches in sent]  # before the save begins
    chain.save()
    stop.set()
    for thread in threads:
        thread.join()

    (after,), _ = restored(chain.base, 1)
    most = np.zeros(ids.size)
    least = np.zeros(ids.size)
    num_lost = 0
    for number in range(3):
        outcomes = {}
        for client in after.applied_writes().clients:
            if client.client_id == f"c{number}":
                outcomes = {write.sequence: write.lost for write in client.writes}

        newest = max(outcomes)
        for sequence, batch in enumerate(sent[number], 1):
            most[batch] += 1
            if outcomes.get(sequence):
                num_lost += 1
                with pytest.raises(OutcomeLost, match="while the checkpoint was saved"):
                    push(after, sequence, batch, client=f"c{number}", is_repeated=True)
            elif sequence <= newest - WINDOW:
                # Too old to be remembered. More of them than that may have come during the save.
                with pytest.raises(SequenceExpired):
                    push(after, sequence, batch, client=f"c{number}", is_repeated=True)
                least[batch] += sequence <= acknowledged[number]
            else:
                push(after, sequence, batch, client=f"c{number}", is_repeated=True)
                least[batch] += 1

    values = -after.tables()[0].lookup(ids)[:, 0]
    assert num_lost > 0, "clients pushed during the save"
    assert (values >= least).all(), "a push that is known to be in it is in it"
    assert (values <= most).all(), "none of them twice"


def test_an_increment_says_whether_clients_were_forgotten(tmp_path):
    store = one_store()
    chain = Chain([store], tmp_path)
    chain.save()
    push(store, 1, [1])
    assert not store.applied_writes().has_forgotten
    store._applied.take_over(has_forgotten=True)
    chain.increment()
    (after,), _ = restored(chain.base, 1)
    assert after.applied_writes().has_forgotten


def test_pushes_of_another_run_are_not_remembered(tmp_path):
    store = one_store()
    chain = Chain([store], tmp_path)
    chain.save()
    push(store, 1, [1])
    chain.increment()
    (after,), _ = restored(chain.base, 1, run_id="another")
    push(after, 1, [1])
    np.testing.assert_array_equal(
        after.tables()[0].lookup(np.array([1])), store.tables()[0].lookup(np.array([1])) - 1
    )


def test_rows_and_remembered_pushes_belong_together_while_clients_push(tmp_path):
    """Three clients push as fast as they can while increments are made. Each is restored: rows
    show just the pushes that are remembered, and repeating all of them makes up for the rest."""
    store = one_store()
    ids = np.arange(3000)
    store.tables()[0].assign(ids, np.zeros((ids.size, DIM), np.float32))
    chain = Chain([store], tmp_path)
    chain.save()
    stop = threading.Event()
    sent = [[] for _ in range(3)]

    def train_on(number):
        rng = np.random.default_rng(number)
        while not stop.is_set():
            batch = rng.choice(ids, 500, replace=False)
            sent[number].append(batch)
            push(store, len(sent[number]), batch, client=f"c{number}")

    threads = [threading.Thread(target=train_on, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    paths = [chain.increment() for _ in range(5)]
    stop.set()
    for thread in threads:
        thread.join()

    assert len(paths) == 5
    (after,), _ = restored(chain.base, 1)
    remembered = {}
    for client in after.applied_writes().clients:
        remembered[client.client_id] = max(write.sequence for write in client.writes)
    expected = np.zeros(ids.size)
    for number in range(3):
        newest = remembered[f"c{number}"]
        assert 0 < newest <= len(sent[number])
        for batch in sent[number][:newest]:
            expected[batch] -= 1
    np.testing.assert_array_equal(after.tables()[0].lookup(ids)[:, 0], expected)

    for number in range(3):
        for sequence, batch in enumerate(sent[number], 1):
            if sequence > remembered[f"c{number}"] - 60:
                push(after, sequence, batch, client=f"c{number}", is_repeated=True)
    np.testing.assert_array_equal(after.tables()[0].lookup(ids), store.tables()[0].lookup(ids))

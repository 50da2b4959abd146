"""A checkpoint and its increments give back what a server held at the last of them."""

import json
import shutil
import threading

import numpy as np
import pytest

from megalith.checkpoint import increments, manifest
from megalith.checkpoint.format import MANIFEST, FileKind
from megalith.checkpoint.increment import save_increment, seal_all
from megalith.checkpoint.increments import read_chain
from megalith.checkpoint.manifest import Manifest
from megalith.checkpoint.restore import restore_shard
from megalith.checkpoint.save import save_shard
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import UpdateKind
from megalith.errors import (
    ChangesForgotten,
    CheckpointDamaged,
    LimitExceeded,
    SequenceExpired,
)
from megalith.ps.store.chain import ChainPositions, Position
from megalith.ps.store.store import Store
from megalith.ps.store.writes import Sender, TableGradients, TableValues, VariableUpdate
from megalith.schema import Adagrad, RandomUniform, Segment, Sgd, TableConfig, VariableConfig
from megalith.wire import routing
from support import at_size

DAY_S = 86400
DIM = 2
INCARNATION = 2**64 - 1
WIDTH = 2 * DIM


def config(name="t", **settings):
    return TableConfig(name, (Segment(DIM, RandomUniform(), Adagrad(0.5)),), **settings)


def routed(num_ps, run_id="run"):
    current = routing.Routing(1, ("a",) * num_ps, routing.even_owners(num_ps), run_id)
    stores = [Store(index) for index in range(num_ps)]
    for store in stores:
        store.route(current, is_initialized=True)
    return stores


def mine(store_index, num_ps, ids):
    return ids[routing.even_owners(num_ps)[routing.buckets_of(ids)] == store_index]


def train(stores, ids, time_s=0, table="t"):
    for index, store in enumerate(stores):
        own = mine(index, len(stores), ids)
        for each in store.tables():
            if each.config.name == table:
                each.apply_gradients(own, np.ones((own.size, DIM), np.float32), req_time_s=time_s)


class Chain:
    """Saves of a job whose servers are `stores`, as its controller would order them."""

    def __init__(self, stores, model_dir):
        self.stores = stores
        self.model_dir = model_dir
        self.base = model_dir / "model.ckpt-1"
        self.sets = []
        self.number = 0

    def save(self):
        self.base.mkdir(parents=True)
        self.sets = [seal_all(store) for store in self.stores]
        files = []
        for index, store in enumerate(self.stores):
            files += save_shard(store, self.base, "s", index, len(self.stores)).files
        manifest.write(
            self.base, Manifest(1, len(self.stores), 1.0, tuple(files), save_id="base-id")
        )

    def increment(self):
        self.number += 1
        work = self.model_dir / f"saving-{self.number}"
        work.mkdir()
        files = []
        for index, store in enumerate(self.stores):
            saved = save_increment(store, self.sets[index], work, "i", index, len(self.stores))
            files += saved.shard.files
            self.sets[index] = saved.sets
        step = 1 + self.number
        link = read_chain(self.base).next_link()
        manifest.write(
            work,
            Manifest(step, len(self.stores), float(step), tuple(files), save_id="i", link=link),
        )
        return increments.publish(work, self.base, link.number)


def restored(base, num_ps, run_id="run"):
    stores = [Store(index) for index in range(num_ps)]
    reports = []
    for index, store in enumerate(stores):
        reports.append(restore_shard(store, base, routing.even_owners(num_ps), index))
    current = routing.Routing(2, ("a",) * num_ps, routing.even_owners(num_ps), run_id)
    for store in stores:
        store.route(current, is_initialized=True)
    return stores, reports


def contents(stores, table="t"):
    """All rows in the order of their ids: ids, then embedding, state and time."""
    tables = [each for store in stores for each in store.tables() if each.config.name == table]
    parts = [each.dump(limit=1 << 19, with_expired=True) for each in tables]
    ids = np.concatenate([part.ids for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    times = np.concatenate([part.times for part in parts])
    order = np.argsort(ids)
    return ids[order], np.column_stack([rows, times])[order]


def assert_same(after, before):
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1], before[1])


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


# --- links ---


def small_chain(tmp_path, count=3):
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config()))
    train(stores, np.arange(100))
    chain = Chain(stores, tmp_path)
    chain.save()
    paths = []
    for turn in range(count):
        train(stores, np.arange(turn, 100, 7))
        paths.append(chain.increment())
    return chain, paths


def test_a_gap_is_named_and_nothing_is_restored(tmp_path):
    chain, paths = small_chain(tmp_path)
    shutil.rmtree(paths[1])
    store = Store(0)
    with pytest.raises(CheckpointDamaged, match=r"increment 2 of .* is missing") as error:
        restore_shard(store, chain.base, routing.even_owners(1), 0)
    assert str(paths[1]) in str(error.value)
    assert store.tables() == []


def test_a_missing_last_increment_is_missed(tmp_path):
    chain, paths = small_chain(tmp_path)
    shutil.rmtree(paths[2])
    with pytest.raises(CheckpointDamaged, match=r"increment 3 of .* is missing"):
        read_chain(chain.base)
    shutil.rmtree(paths[0].parent)
    with pytest.raises(CheckpointDamaged, match=r"increment 1 of .* is missing"):
        read_chain(chain.base)


def test_without_the_folder_of_increments_the_checkpoint_itself_is_restored(tmp_path):
    chain, _ = small_chain(tmp_path)
    shutil.rmtree(tmp_path / "increments")
    assert read_chain(chain.base).number == 0


def test_a_removal_that_was_cut_short_leaves_all_increments_or_none(tmp_path, monkeypatch):
    """Whoever goes back to the checkpoint must not get the first few of its increments."""
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config()))
    chain = Chain(stores, tmp_path)
    chain.save()
    for turn in range(3):
        train(stores, np.arange(turn * 10, turn * 10 + 10))
        chain.increment()

    def killed(path, **_):
        if path.exists():
            for file in (path / "000003").iterdir():
                file.unlink()
            (path / "000003").rmdir()
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            increments.remove_all(tmp_path)
    assert read_chain(chain.base).number == 0
    increments.remove_all(tmp_path)
    assert list((tmp_path / increments.FOLDER).iterdir()) == []


def test_an_increment_of_another_chain_does_not_fit(tmp_path):
    chain, paths = small_chain(tmp_path / "a")
    _, others = small_chain(tmp_path / "b", count=4)
    shutil.rmtree(paths[1])
    shutil.copytree(others[2], paths[1])
    with pytest.raises(CheckpointDamaged, match="does not go on from what is before it"):
        read_chain(chain.base)


def test_a_changed_manifest_or_file_is_damaged(tmp_path):
    chain, paths = small_chain(tmp_path)
    (rows,) = paths[0].glob("table-*")
    data = bytearray(rows.read_bytes())
    data[len(data) // 2] ^= 1
    rows.write_bytes(data)
    with pytest.raises(CheckpointDamaged, match=rows.name):
        restore_shard(Store(0), chain.base, routing.even_owners(1), 0)

    content = json.loads((paths[0] / MANIFEST).read_bytes())
    content.pop("checksum")
    content["step"] = 77
    (paths[0] / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(CheckpointDamaged, match="000002 does not go on from what is before it"):
        read_chain(chain.base)


def test_rows_that_are_missing_in_the_log_stop_the_restore(tmp_path):
    """Should an id ever be missed by the log, the count of rows tells it."""
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config()))
    chain = Chain(stores, tmp_path)
    chain.save()
    table = stores[0].tables()[0]
    train(stores, np.arange(10))
    table.load(np.array([99]), np.zeros((1, WIDTH), np.float32), np.array([1]))  # tells nobody
    chain.increment()
    with pytest.raises(CheckpointDamaged, match=r"gives this ps 10 rows.*had 11"):
        restore_shard(Store(0), chain.base, routing.even_owners(1), 0)


def test_a_log_that_forgot_changes_makes_no_increment_and_leaves_no_file(tmp_path):
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config(touched_capacity=50)))
    chain = Chain(stores, tmp_path)
    chain.save()
    train(stores, np.arange(51))
    with pytest.raises(ChangesForgotten, match="touched_capacity"):
        chain.increment()
    assert list((tmp_path / "saving-1").iterdir()) == []


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

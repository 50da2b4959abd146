"""Counts of admission filters through a checkpoint, at the same and at other numbers of servers."""

import sys
import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.checkpoint.files import filters as filter_files
from megalith.checkpoint.files import tables as table_files
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files, manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.admission.filters import admission_filter
from megalith.engine.admission.union import union_of
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import CheckpointDamaged
from megalith.ps.store.store import Store
from megalith.schema import AdmissionConfig, FilterKind, Segment, Sgd, TableConfig, Zeros
from megalith.wire import routing
from support import at_size
from support.twins.admission import count_in, place_of

IDS = np.random.default_rng(0).integers(0, 2**63 - 1, 3000)
TIMES = np.arange(IDS.size) % 4 + 1  # how often each id was pushed
THRESHOLD = 3


def config(kind=FilterKind.SLIDING, **settings):
    rule = AdmissionConfig(kind=kind, default_threshold=THRESHOLD, capacity=40_000)
    return TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), admission=rule, **settings)


def push(stores, ids):
    owners = routing.even_owners(len(stores))[routing.buckets_of(ids)]
    for index, store in enumerate(stores):
        mine = ids[owners == index]
        store.tables()[0].apply_gradients(mine, -np.ones((mine.size, 1), np.float32))


def counts(stores, ids=IDS):
    owners = routing.even_owners(len(stores))[routing.buckets_of(ids)]
    out = np.empty(ids.size, np.int64)
    for index, store in enumerate(stores):
        out[owners == index] = store.tables()[0].admission.counts_of(ids[owners == index])
    return out


def rows(stores, ids=IDS):
    return sum(store.tables()[0].lookup(ids)[:, 0] for store in stores)


def routed(num_ps):
    stores = [Store(index) for index in range(num_ps)]
    for store in stores:
        store.route(
            routing.Routing(1, ("a",) * num_ps, routing.even_owners(num_ps)), is_initialized=True
        )
    return stores


def trained(num_ps, kind=FilterKind.SLIDING):
    """Every id was pushed `TIMES` times: those pushed 4 times have a row."""
    stores = routed(num_ps)
    for store in stores:
        store.adopt(table=EmbeddingTable(config(kind)))
    for turn in range(4):
        push(stores, IDS[turn < TIMES])
    return stores


def save(stores, directory):
    directory.mkdir()
    files = [
        file
        for index, store in enumerate(stores)
        for file in save_shard(store, directory, "s", index, len(stores)).files
    ]
    manifest.write(
        directory, Manifest(step=1, num_ps=len(stores), saved_at_s=1.0, files=tuple(files))
    )
    return files


def restore(directory, num_ps):
    stores = routed(num_ps)
    for index, store in enumerate(stores):
        restore_shard(store, directory, routing.even_owners(num_ps), index)
    return stores


@pytest.mark.parametrize("kind", [FilterKind.SLIDING, FilterKind.PLAIN])
@pytest.mark.parametrize("num_ps", [1, 2, 3, 9])
def test_ids_go_on_counting_where_they_stood_at_any_number_of_servers(tmp_path, num_ps, kind):
    before = trained(2, kind)
    save(before, tmp_path / "c")
    after = restore(tmp_path / "c", num_ps)
    is_same = counts(after) == counts(before)
    assert is_same.all() or (
        num_ps != 2 and (counts(after) >= counts(before)).all() and is_same.mean() > 0.998
    )
    np.testing.assert_array_equal(rows(after), rows(before))
    for _ in range(3):  # every push brings rows to ids that had one sighting less
        push(after, IDS)
        push(before, IDS)
        np.testing.assert_array_equal(rows(after)[is_same], rows(before)[is_same])
    assert (rows(after) > 0).all()


def test_a_filter_of_nine_servers_comes_together_in_one(tmp_path):
    before = trained(9)
    save(before, tmp_path / "c")
    after = restore(tmp_path / "c", 1)
    assert (counts(after) >= counts(before)).all()
    assert np.mean(counts(after) == counts(before)) > 0.998


@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_300_000_sorted_ids_keep_their_sightings(tmp_path, num_ps):
    """Half of them have a row, the others have been seen one or three times."""
    ids = at_size.ids_in("sorted", 300_000)
    seen = np.where(ids % 2 == 0, THRESHOLD + 1, ids % 4)
    has_row = seen > THRESHOLD
    rule = AdmissionConfig(kind=FilterKind.PLAIN, default_threshold=THRESHOLD, capacity=1_000_000)
    wide = TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), admission=rule)
    before = routed(2)
    for store in before:
        store.adopt(table=EmbeddingTable(wide))
    for turn in range(THRESHOLD + 1):
        push(before, ids[turn < seen])
    expected_counts = counts(before, ids[~has_row])
    files = save(before, tmp_path / "c")
    num_rows = sum(file.rows for file in files if file.kind == "table")
    created = [store.tables()[0].contains(ids) for store in before]
    is_held = np.logical_or.reduce(created)
    assert is_held[has_row].all()
    assert num_rows == np.count_nonzero(is_held)

    after = restore(tmp_path / "c", num_ps)
    assert sum(len(store.tables()[0]) for store in after) == num_rows
    np.testing.assert_array_equal(rows(after, ids), rows(before, ids))
    found = counts(after, ids[~has_row])
    assert (found >= expected_counts).all()
    # In a union of two filters some ids share a cell, which has the higher count of both.
    assert np.mean(found == expected_counts) > (0.9 if num_ps != 2 else 0.999999)


def test_any_arrow_reader_opens_a_filter(tmp_path):
    (store,) = trained(1)
    file = next(file for file in save([store], tmp_path / "c") if file.kind == "filter")
    with pa.memory_map(str(tmp_path / "c" / file.name)) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.column_names == ["block", "elements", "cells"]
    state = store.tables()[0].admission.state()
    assert table.column("elements").to_pylist() == state["elements"][state["blocks"]].tolist()
    np.testing.assert_array_equal(table.column("cells").to_pylist(), state["cells"])


@pytest.mark.golden("HashFilterOpsTest.test_dummy_hash_filter_save_restore")
def test_filters_that_remember_nothing_leave_no_file(tmp_path):
    """Filters that remember nothing leave no file."""
    store = Store(0)
    rule = AdmissionConfig(kind=FilterKind.PROBABILISTIC, default_threshold=3)
    store.adopt(table=EmbeddingTable(TableConfig("t", (Segment(1),), admission=rule)))
    files = save([store], tmp_path / "c")
    assert [file.kind for file in files] == ["table", "variables", "applied"]
    (after,) = restore(tmp_path / "c", 1)
    assert after.tables()[0].config.admission == rule


@pytest.mark.golden("HashFilterOpsTest.test_restore_not_found")
def test_a_checkpoint_whose_filter_file_is_gone_is_damaged(tmp_path):
    files = save(trained(1), tmp_path / "c")
    (missing,) = [file for file in files if file.kind == "filter"]
    (tmp_path / "c" / missing.name).unlink()
    with pytest.raises(CheckpointDamaged, match=missing.name):
        restore(tmp_path / "c", 1)


def test_a_checkpoint_without_the_filter_of_a_table_is_refused_and_nothing_is_restored(tmp_path):
    files = [file for file in save(trained(1), tmp_path / "c") if file.kind != "filter"]
    manifest.write(tmp_path / "c", Manifest(step=1, num_ps=1, saved_at_s=1.0, files=tuple(files)))
    store = Store(0)
    with pytest.raises(CheckpointDamaged, match="rows of table t, but not its admission filter"):
        restore_shard(store, tmp_path / "c", routing.even_owners(1), 0)
    assert store.tables() == []


def test_a_file_of_unknown_kind_is_refused(tmp_path):
    store = Store(0)
    file, *_ = save([store], tmp_path / "c")
    strange = manifest.ShardFile(file.name, "codebook", "", file.rows, file.bytes, file.sha256)
    manifest.write(tmp_path / "c", Manifest(step=1, num_ps=1, saved_at_s=1.0, files=(strange,)))
    with pytest.raises(CheckpointDamaged, match="unknown kind 'codebook'"):
        restore(tmp_path / "c", 1)


LARGER = replace(config(), admission=replace(config().admission, capacity=80_000))
UNFILTERED = replace(config(), admission=None)


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("changed", [LARGER, UNFILTERED], ids=["larger", "unfiltered"])
@pytest.mark.parametrize("first", [0, 1])
def test_an_admission_that_changed_on_one_server_before_another_was_saved_is_restored(
    tmp_path, caplog, changed, first, after
):
    before = trained(2)
    expected = rows(before)
    before[first].tables()[0].reconfigure(changed)
    files = save(before, tmp_path / "c")
    stores = routed(after)
    restored = [
        restore_shard(store, tmp_path / "c", routing.even_owners(after), index)
        for index, store in enumerate(stores)
    ]
    np.testing.assert_array_equal(rows(stores), expected)
    num_reset = sum(part.filters_reset for part in restored)
    config_of_all = before[0].tables()[0].config  # the file of the first ps decides
    assert all(store.tables()[0].config == config_of_all for store in stores)
    if changed is UNFILTERED:
        assert num_reset == 0
        return
    assert num_reset >= 1
    (misfit,) = [file.name for file in files if file.kind == "filter" and "ps-00001" in file.name]
    assert f"table=t file={tmp_path / 'c' / misfit}" in caplog.text
    for _ in range(4):  # ids of the filter that is left out are counted from zero
        push(stores, IDS)
    assert (rows(stores) > 0).all()


def test_an_admission_that_changes_while_the_rows_are_written_leaves_filter_and_rows_in_agreement(
    tmp_path, monkeypatch
):
    (store,) = trained(1)
    expected = counts([store])
    write = table_files.write

    def write_and_change(table, *arguments):
        file = write(table, *arguments)
        table.reconfigure(LARGER)
        return file

    monkeypatch.setattr(table_files, "write", write_and_change)
    save([store], tmp_path / "c")
    (restored,) = restore(tmp_path / "c", 1)
    assert restored.tables()[0].config == config()
    np.testing.assert_array_equal(counts([restored]), expected)


def filled(kind, thresholds, capacity, ids, seen):
    filter_ = kind(thresholds, capacity)
    for key, count in zip(ids, seen, strict=True):
        filter_.admit(np.array([key]), np.array([count]))
    return filter_


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 120), min_size=2, max_size=8),
    kind=st.sampled_from([CountingFilter.plain, CountingFilter.sliding]),
)
@settings(max_examples=25)
def test_a_union_counts_no_id_lower_than_the_filter_it_came_from(seed, sizes, kind):
    """As long as all of them fit. With signatures of four bits collisions are many.

    In a ring an id may be hidden: a search ends at the newest block that has a cell of equal
    signature, or whose cells within reach are all taken. Its count is then in an older block.
    """
    rng = np.random.default_rng(seed)
    thresholds = AdmissionConfig(default_threshold=15).thresholds()

    def build(thresholds, capacity):
        return kind(thresholds, capacity, cell_bytes=1)

    ids = [rng.integers(0, 2**48, size) for size in sizes]
    filters = [
        filled(build, thresholds, 5000, keys, rng.integers(1, 15, keys.size)) for keys in ids
    ]
    union = build(thresholds, 5000)
    union.restore(union_of([filter_.state() for filter_ in filters]))
    for keys, filter_ in zip(ids, filters, strict=True):
        before, after = filter_.counts_of(keys), union.counts_of(keys)
        assert kind == CountingFilter.sliding or (after >= before).all()
        assert all(
            held_somewhere(union, int(key), count) for key, count in zip(keys, before, strict=True)
        )
    assert union.num_elements <= sum(sizes)


def held_somewhere(filter_, key, count):
    """Whether a block of the filter has at least that count for an id, or no cell left for it."""
    start, signature = place_of(key, filter_.layout)
    return any(
        count_in(cells, start, signature, filter_.layout) >= count
        for cells in filter_.state()["cells"]
    )


def test_a_union_of_full_rings_keeps_the_newest_of_each():
    thresholds = AdmissionConfig(default_threshold=15).thresholds()
    rng, filters, streams = np.random.default_rng(5), [], []
    for _ in range(2):
        streams.append(rng.integers(0, 2**48, 3000))
        filters.append(CountingFilter.sliding(thresholds, 1200, 7))
        filters[-1].admit(streams[-1], np.full(3000, 2))
    union = CountingFilter.sliding(thresholds, 1200, 7)
    union.restore(union_of([filter_.state() for filter_ in filters]))
    for stream in streams:
        assert (union.counts_of(stream[-300:]) >= 2).all()
        assert np.count_nonzero(union.counts_of(stream[:1500])) < 100
    assert union.num_elements <= 1200
    assert not union.admit(rng.integers(0, 2**48, 500), np.ones(500, np.int64)).any()
    for stream in streams:  # as the ring turns, the oldest go first
        assert (union.counts_of(stream[-100:]) >= 2).all()


def test_a_union_adds_up_what_found_no_cell():
    thresholds = AdmissionConfig(default_threshold=15).thresholds()
    filters = [CountingFilter.plain(thresholds, 1, fill_rate=1) for _ in range(2)]
    for filter_ in filters:
        filter_.admit(np.arange(1, 200) << 17, np.ones(199, np.int64))
    union = CountingFilter.plain(thresholds, 1, fill_rate=1)
    union.restore(union_of([filter_.state() for filter_ in filters]))
    assert union.num_failures == sum(filter_.num_failures for filter_ in filters) > 0


def test_filters_of_different_layouts_have_no_union():
    thresholds = AdmissionConfig(default_threshold=3).thresholds()
    states = [CountingFilter.sliding(thresholds, capacity).state() for capacity in (1000, 2000)]
    with pytest.raises(CheckpointDamaged, match="different layouts"):
        union_of(states)


def layout_of(held):
    """What tells the filters of `CHANGES` apart."""
    return held.layout if isinstance(held, CountingFilter) else type(held)


SMALL = config()
CHANGES = (
    replace(SMALL, admission=replace(SMALL.admission, capacity=80_000)),
    replace(SMALL, admission=None),
    config(FilterKind.PROBABILISTIC),
    SMALL,
)


def test_settings_and_filter_belong_together_however_fast_another_thread_changes_them():
    table = EmbeddingTable(SMALL)
    wanted = {
        id(each): layout_of(each.admission and admission_filter(each.admission)) for each in CHANGES
    }
    seen = set()

    def change():
        for _ in range(5000):
            for each in CHANGES:
                table.reconfigure(each)

    changer = threading.Thread(target=change)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    changer.start()
    try:
        while changer.is_alive():
            settings_now, held = table.config_and_filter
            seen.add((id(settings_now), layout_of(held)))
    finally:
        changer.join()
        sys.setswitchinterval(before)
    assert len(seen) > 1
    assert seen <= set(wanted.items())


@pytest.mark.parametrize("after", CHANGES[:3], ids=["larger", "none", "other kind"])
def test_a_table_whose_admission_changes_while_its_rows_are_written_keeps_the_filter_of_its_file(
    tmp_path, monkeypatch, after
):
    (store,) = trained(1)
    (table,) = store.tables()
    held = table.admission
    write = table_files.write

    def write_and_change(*arguments):
        written = write(*arguments)
        table.reconfigure(after)
        return written

    monkeypatch.setattr(table_files, "write", write_and_change)
    saved = save_shard(store, tmp_path, "id", 0, 1)
    assert table.config == after
    by_kind = {file.kind: file for file in saved.files}
    assert table_files.header(tmp_path, by_kind[FileKind.TABLE]).config == SMALL
    with arrow_files.opened(tmp_path, by_kind[FileKind.FILTER]) as reader:
        state = filter_files.read_filter(reader, "", np.ones(routing.NUM_BUCKETS, np.bool_))
    assert tuple(state["layout"].tolist()) == tuple(held.layout)

"""Counts of admission filters and touched keys through a checkpoint, at the same and at other numbers of servers."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.ps import checkpoint
from megalith.ps.counting_filter import CountingFilter
from megalith.ps.filter_union import union_of
from megalith.ps.store import Store
from megalith.ps.table import EmbeddingTable
from megalith.runtime import manifest
from megalith.runtime.manifest import Manifest
from megalith.wire import routing
from megalith.wire.errors import CheckpointDamaged
from megalith.wire.schema import AdmissionConfig, FilterKind, Segment, Sgd, TableConfig, Zeros
from unit.ps.reference_admission import count_in, place_of

IDS = np.random.default_rng(0).integers(0, 2**63 - 1, 3000)
TIMES = np.arange(IDS.size) % 4 + 1  # how often each id was pushed
THRESHOLD = 3


def config(kind=FilterKind.SLIDING, **settings):
    rule = AdmissionConfig(kind=kind, default_threshold=THRESHOLD, capacity=40_000)
    return TableConfig(
        "t", (Segment(1, Zeros(), Sgd(1.0)),), admission=rule, touched_capacity=10_000, **settings
    )


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
        for file in checkpoint.write_shard(store, directory, "s", index, len(stores)).files
    ]
    manifest.write(
        directory, Manifest(step=1, num_ps=len(stores), saved_at_s=1.0, files=tuple(files))
    )
    return files


def restore(directory, num_ps):
    stores = routed(num_ps)
    for index, store in enumerate(stores):
        checkpoint.restore_shard(store, directory, routing.even_owners(num_ps), index)
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


def test_touched_keys_go_to_the_servers_of_their_buckets_and_what_was_forgotten_is_known(tmp_path):
    before = trained(2)
    expected = {int(key) for store in before for key in store.tables()[0].touched.held()}
    assert expected == set(IDS[TIMES == 4].tolist())
    before[0].tables()[0].restore_touched(np.empty(0, np.int64), 17)
    save(before, tmp_path / "c")
    after = restore(tmp_path / "c", 3)
    held = [store.tables()[0].steal_touched() for store in after]
    for index, keys in enumerate(held):
        assert (routing.even_owners(3)[routing.buckets_of(keys)] == index).all()
    assert sorted(np.concatenate(held).tolist()) == sorted(expected)
    assert after[0].tables()[0].stats().touched_overflow == 17


def test_any_arrow_reader_opens_a_filter(tmp_path):
    (store,) = trained(1)
    file = next(file for file in save([store], tmp_path / "c") if file.kind == "filter")
    with pa.memory_map(str(tmp_path / "c" / file.name)) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.column_names == ["block", "elements", "cells"]
    state = store.tables()[0].admission.state()
    assert table.column("elements").to_pylist() == state["elements"][state["blocks"]].tolist()
    np.testing.assert_array_equal(table.column("cells").to_pylist(), state["cells"])


def test_golden_hash_filter_ops_test_dummy_hash_filter_save_restore(tmp_path):
    """Filters that remember nothing leave no file."""
    store = Store(0)
    rule = AdmissionConfig(kind=FilterKind.PROBABILISTIC, default_threshold=3)
    store.adopt(table=EmbeddingTable(TableConfig("t", (Segment(1),), admission=rule)))
    assert [file.kind for file in save([store], tmp_path / "c")] == ["table", "variables"]
    (after,) = restore(tmp_path / "c", 1)
    assert after.tables()[0].config.admission == rule


def test_golden_hash_filter_ops_test_restore_not_found(tmp_path):
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
        checkpoint.restore_shard(store, tmp_path / "c", routing.even_owners(1), 0)
    assert store.tables() == []


def test_a_file_of_unknown_kind_is_refused(tmp_path):
    store = Store(0)
    (file,) = save([store], tmp_path / "c")
    strange = manifest.ShardFile(file.name, "codebook", "", file.rows, file.bytes, file.sha256)
    manifest.write(tmp_path / "c", Manifest(step=1, num_ps=1, saved_at_s=1.0, files=(strange,)))
    with pytest.raises(CheckpointDamaged, match="unknown kind 'codebook'"):
        restore(tmp_path / "c", 1)


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

    In a ring an id may be hidden: a search ends at the newest block that has a cell of equal signature, or whose cells
    within reach are all taken. Its count is then in an older block.
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

"""Checkpoints of the first release are read for ever: every value of the files that are kept
here."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.format import MANIFEST, FileKind
from megalith.checkpoint.layout import integrity, manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.restoring.serving import load_for_serving
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.ps.store.store import Store
from megalith.wire import routing
from support import first_checkpoint as first

FIXTURE = Path(__file__).parents[2] / "fixtures" / "checkpoint-v1"


@pytest.fixture(params=[1, 2], ids=["format 1", "format 2"])
def directory(request, tmp_path):
    """The fixture, and the same with a manifest that does not name buckets."""
    if request.param == 2:
        return FIXTURE
    copy = tmp_path / "model.ckpt-120"
    shutil.copytree(FIXTURE, copy)
    content = json.loads((copy / MANIFEST).read_text())
    content["format"] = 1
    for file in content["files"]:
        del file["buckets"]
    (copy / MANIFEST).write_text(json.dumps(content))
    return copy


def restored_on(directory, num_ps):
    owners = routing.even_owners(num_ps)
    stores = [Store(index) for index in range(num_ps)]
    reports = [restore_shard(store, directory, owners, index) for index, store in enumerate(stores)]
    assert sum(report.rows for report in reports) == len(first.TABLES) * first.IDS.size
    assert sum(report.expired for report in reports) == 0
    assert sum(report.filters_reset for report in reports) == 0
    assert {report.step for report in reports} == {first.STEP}
    assert {report.saved_at_s for report in reports} == {first.SAVED_AT_S}
    return stores


def test_the_fixture_has_a_file_of_every_kind():
    content = manifest.read(FIXTURE)
    assert {file.kind for file in content.files} == {"table", "filter", "touched", "variables"}
    assert (content.step, content.num_ps) == (first.STEP, 2)
    for file in content.files:
        integrity.verify(FIXTURE, file)


@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_every_row_comes_back_with_its_embedding_state_and_time(directory, num_ps):
    stores = restored_on(directory, num_ps)
    for config in first.TABLES:
        expected = first.rows_of(EmbeddingTable(config).layout.width)
        expected_times = first.times()
        found = set()
        for index, store in enumerate(stores):
            table = next(each for each in store.tables() if each.config.name == config.name)
            assert table.config == config
            assert table.max_update_s == first.DATA_TIME_S
            part = table.dump(limit=1000)
            at = np.searchsorted(first.IDS, part.ids)
            np.testing.assert_array_equal(first.IDS[at], part.ids)
            np.testing.assert_array_equal(part.rows, expected[at])
            np.testing.assert_array_equal(part.times, expected_times[at])
            assert (routing.even_owners(num_ps)[routing.buckets_of(part.ids)] == index).all()
            found |= set(part.ids.tolist())
        assert found == set(first.IDS.tolist())


@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_sightings_come_back(directory, num_ps):
    stores = restored_on(directory, num_ps)
    owners = routing.even_owners(num_ps)[routing.buckets_of(first.SEEN_IDS)]
    for index, store in enumerate(stores):
        table = next(each for each in store.tables() if each.config.name == first.ITEM.name)
        mine = owners == index
        counts = table.admission.counts_of(first.SEEN_IDS[mine])
        np.testing.assert_array_equal(counts, first.SEEN[mine])


@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_every_variable_comes_back_with_its_state_also_one_in_parts(directory, num_ps):
    stores = restored_on(directory, num_ps)
    by_name = {each.config.part_name: each for store in stores for each in store.variables()}
    expected_names = {
        piece.part_name for config in first.VARIABLES for piece in config.split(num_ps)
    }
    assert set(by_name) == expected_names
    for config in first.VARIABLES:
        value, state = first.whole(config)
        for piece in config.split(num_ps):
            variable = by_name[piece.part_name]
            found_value, found_state = variable.dump()
            part = piece.part
            rows = slice(None) if part is None else slice(part.start, part.stop)
            np.testing.assert_array_equal(found_value, value[rows] if value.ndim else value)
            assert set(found_state) == set(state)
            for name, field in state.items():
                expected = field[rows] if field.ndim else field
                np.testing.assert_array_equal(found_state[name], expected, err_msg=name)
            assert variable.config.optimizer == config.optimizer
            assert variable.config.schedule == config.schedule


def test_the_embeddings_are_served(directory):
    served = load_for_serving(directory)
    assert set(served.tables) == {config.name for config in first.TABLES}
    rows = first.rows_of(first.ITEM.dim)
    found = served.tables[first.ITEM.name].lookup(first.IDS)
    np.testing.assert_allclose(found, rows[:, : first.ITEM.dim], rtol=1e-3)
    assert len(served.tables[first.USER.name]) == first.IDS.size


def test_what_is_written_today_is_what_was_written_then(tmp_path):
    """Names, kinds and contents; only what depends on the order of rows in memory may differ.

    Touched ids are not written any more, applied pushes are, and the file of a table says more
    about its table.
    """
    files = []
    for index, store in enumerate(first.trained(2)):
        files += save_shard(store, tmp_path, "0a1b2c3d", index, 2).files
    manifest.write(
        tmp_path,
        Manifest(step=first.STEP, num_ps=2, saved_at_s=first.SAVED_AT_S, files=tuple(files)),
    )
    before = [file for file in manifest.read(FIXTURE).files if file.kind != FileKind.TOUCHED]
    written = manifest.read(tmp_path).files
    now = [file for file in written if file.kind != FileKind.APPLIED]
    for old, new in zip(before, now, strict=True):
        assert (new.name, new.kind, new.table, new.rows, new.buckets) == (
            old.name,
            old.kind,
            old.table,
            old.rows,
            old.buckets,
        )
        if old.kind != FileKind.TABLE:
            assert new.bytes == old.bytes
        if old.kind == FileKind.VARIABLES:
            assert new.sha256 == old.sha256

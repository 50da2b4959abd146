"""Whoever looks at a checkpoint sees it with its increments, as a job would restore it."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest

from megalith.checkpoint.directory import catalog, increments
from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.inspection import checkpoint_rows
from megalith.checkpoint.inspection.details import details
from megalith.checkpoint.inspection.difference import compare
from megalith.checkpoint.inspection.export import ExportFormat, export
from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.saving.increment import _Increment, save_increment, seal_all
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import CheckpointDamaged, CheckpointNotFound
from megalith.schema import Adagrad, Segment, TableConfig, Zeros
from support import at_size, checkpoints

TABLE = TableConfig("t", (Segment(2, Zeros(), Adagrad(0.5)),), touched_capacity=1 << 20)


class Job:
    """One server that holds `ids` with ones, saved once; `increment` saves what changed since."""

    def __init__(self, model_dir, ids):
        ones = np.ones((ids.size, 2), np.float32)
        (self.store,) = checkpoints.stores_with([(TABLE, ids, ones, 7)], num_ps=1)
        (self.table,) = self.store.tables()
        self.base = model_dir / "model.ckpt-1"
        self.base.mkdir(parents=True)
        self._sets = seal_all(self.store)
        files = save_shard(self.store, self.base, "s", 0, 1).files
        manifest.write(self.base, Manifest(1, 1, 1.0, tuple(files), save_id="base"))

    def increment(self):
        link = increments.read_chain(self.base).next_link()
        work = self.base.parent / f"saving-{link.number}"
        work.mkdir()
        saved = save_increment(self.store, self._sets, work, "i", 0, 1)
        self._sets = saved.sets
        files = tuple(saved.shard.files)
        step = 1 + link.number
        content = Manifest(step, 1, float(step), files, save_id="i", link=link)
        manifest.write(work, content)
        return increments.publish(work, self.base, link.number)

    def assign(self, ids, value):
        self.table.assign(ids, np.full((ids.size, 2), value, np.float32), req_time_s=8)


def changed_twice(model_dir, ids):
    """Rows 0..999 become 2, 500..599 then 3; 2000..2999 are erased, and 2000..2099 come back."""
    job = Job(model_dir, ids)
    job.assign(ids[:1000], 2)
    job.table.erase(ids[2000:3000])
    job.increment()
    job.assign(ids[500:600], 3)
    job.assign(ids[2000:2100], 4)
    job.increment()
    return job


def expected_values(ids):
    values = dict.fromkeys(ids.tolist(), 1.0)
    values.update(dict.fromkeys(ids[:1000].tolist(), 2.0))
    values.update(dict.fromkeys(ids[500:600].tolist(), 3.0))
    for number in ids[2100:3000].tolist():
        del values[number]
    values.update(dict.fromkeys(ids[2000:2100].tolist(), 4.0))
    return values


@pytest.mark.parametrize("order", ["random", "sorted"])
@pytest.mark.parametrize("memory_bytes", [1 << 20, 1 << 30])
def test_an_export_of_300000_rows_has_what_the_increments_made_of_them(
    tmp_path, monkeypatch, order, memory_bytes
):
    monkeypatch.setattr(checkpoint_rows.TableRows.batches, "__defaults__", (memory_bytes,))
    ids = at_size.ids_in(order, 300_000)
    job = changed_twice(tmp_path, ids)
    written = export(job.base, tmp_path / "out", ExportFormat.PARQUET)
    found = values_of(tmp_path / "out" / "t.parquet")
    assert written.rows_by_file == {"t.parquet": 299_100}
    assert found == expected_values(ids)


def test_a_difference_is_that_of_the_models_that_a_job_would_start_with(tmp_path):
    ids = np.arange(5000)
    job = changed_twice(tmp_path / "a", ids)
    plain = Job(tmp_path / "b", ids)
    (table,) = compare(job.base, plain.base).tables
    assert (table.rows_a, table.rows_b) == (4100, 5000)
    assert (table.only_in_a, table.only_in_b) == (0, 900)
    assert table.changed == 1100
    assert table.equal == 3000


def values_of(path):
    rows = pyarrow.parquet.read_table(path)
    first = rows["segment_0"].combine_chunks().flatten().to_numpy()[::2]
    return dict(zip(rows["id"].to_pylist(), first.tolist(), strict=True))


@pytest.mark.parametrize("num_increments", [1, 2])
def test_a_table_made_after_the_checkpoint_is_seen_as_a_job_would_restore_it(
    tmp_path, monkeypatch, num_increments
):
    """It is trained while its first increment is written, which has some of its ids twice."""
    ids = np.arange(6000)
    job = Job(tmp_path / "model", ids)
    job.store.adopt(table=EmbeddingTable(replace(TABLE, name="new")))
    (new,) = (table for table in job.store.tables() if table.config.name == "new")
    new.assign(ids, np.full((6000, 2), 5, np.float32), req_time_s=8)
    write_round = _Increment._write_round
    is_first = [True]

    def write_and_train(increment):
        count = write_round(increment)
        if is_first.pop():
            new.assign(ids[:100], np.full((100, 2), 6, np.float32), req_time_s=9)
            new.erase(ids[100:130])

        is_first.append(False)
        return count

    monkeypatch.setattr(_Increment, "_write_round", write_and_train)
    for _ in range(num_increments):
        job.increment()

    expected = dict.fromkeys(range(130, 6000), 5.0)
    expected.update(dict.fromkeys(range(100), 6.0))
    assert verify(job.base).problems == []
    written = export(job.base, tmp_path / "out", ExportFormat.PARQUET)
    assert written.rows_by_file == {"new.parquet": 5970, "t.parquet": 6000}
    assert values_of(tmp_path / "out" / "new.parquet") == expected

    other = Job(tmp_path / "other", ids)
    assert compare(job.base, other.base).tables_only_in_a == {"new": 5970}
    found = next(table for table in compare(job.base, job.base).tables if table.table == "new")
    assert found.equal == 5970


def test_increments_are_verified_and_shown_with_their_checkpoint(tmp_path):
    job = changed_twice(tmp_path, np.arange(5000))
    found = verify(job.base)
    assert found.problems == []
    assert (found.increments, found.step, found.rows) == (2, 3, 4100)
    shown = details(job.base)
    assert (shown.increments, shown.step, shown.rows) == (2, 3, 4100)


def test_any_changed_byte_of_an_increment_is_found_and_its_file_named(tmp_path):
    job = changed_twice(tmp_path, np.arange(5000))
    folder = tmp_path / increments.FOLDER / job.base.name / "000001"
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for offset in range(0, len(content), max(1, len(content) // 20)):
            changed = bytearray(content)
            changed[offset] ^= 1 << offset % 8
            path.write_bytes(changed)
            problems = verify(job.base).problems
            assert problems
            text = " ".join(f"{problem.file} {problem.what}" for problem in problems)
            assert "000001" in text
            assert path.name in text

        path.write_bytes(content)

    assert verify(job.base).is_whole


class OnceReached:
    """Progress that calls `then` when the work that is named so begins."""

    def __init__(self, name, then):
        self._name = name
        self._then = then

    def begin(self, what, total_bytes):
        if what.endswith(self._name):
            self._then()

    def add(self, done_bytes):
        pass


@pytest.mark.parametrize("number", [1, 2])
def test_increments_that_a_save_of_the_job_takes_away_meanwhile_are_no_damage(tmp_path, number):
    job = changed_twice(tmp_path, np.arange(5000))
    reached = OnceReached(f"/00000{number}/", lambda: increments.remove_all(tmp_path))
    found = verify(job.base, reached)
    assert (found.problems, found.increments, found.step) == ([], 0, 1)
    assert found == verify(job.base)


def test_a_checkpoint_that_its_job_removes_meanwhile_is_gone_and_not_damaged(tmp_path):
    job = changed_twice(tmp_path, np.arange(5000))
    reached = OnceReached(job.base.name, lambda: catalog.remove(tmp_path, job.base.name))
    with pytest.raises(CheckpointNotFound, match="was removed while it was looked at"):
        verify(job.base, reached)


def test_a_missing_increment_is_named_by_everybody(tmp_path):
    job = changed_twice(tmp_path, np.arange(5000))
    folder = tmp_path / increments.FOLDER / job.base.name
    (folder / "000001" / MANIFEST).unlink()
    (problem,) = verify(job.base).problems
    assert "increment 1" in problem.what
    with pytest.raises(CheckpointDamaged, match="increment 1"):
        export(job.base, tmp_path / "out", ExportFormat.CSV)
    with pytest.raises(CheckpointDamaged, match="increment 1"):
        details(job.base)

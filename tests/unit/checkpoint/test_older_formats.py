"""Checkpoints of formats 3 and 4 load as they always did.

Format 3 has one column of state and no blocks. Format 4 has blocks, and a sha256 of each file too.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.ps.store.store import Store
from megalith.wire import routing
from support import format_three

FIXTURES = Path(__file__).parents[2] / "fixtures"
FORMATS = [3, 4]


def base_of(version):
    return FIXTURES / f"checkpoint-v{version}" / f"model.ckpt-{format_three.STEP}"


@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("version", FORMATS)
def test_every_row_comes_back_with_its_embedding_state_and_time(version, num_ps):
    owners = routing.even_owners(num_ps)
    stores = [Store(index) for index in range(num_ps)]
    for index, store in enumerate(stores):
        assert restore_shard(store, base_of(version), owners, index).increments == 1

    for number, config in enumerate(format_three.TABLES):
        parts = []
        for store in stores:
            table = next(each for each in store.tables() if each.config.name == config.name)
            parts.append(table.dump(limit=1000))

        found_ids = np.concatenate([part.ids for part in parts])
        found_rows = np.concatenate([part.rows for part in parts])
        found_times = np.concatenate([part.times for part in parts])
        order = np.argsort(found_ids)
        ids, rows, times = format_three.expected_rows(config)
        np.testing.assert_array_equal(found_ids[order], ids, err_msg=str(number))
        np.testing.assert_array_equal(found_rows[order], rows)
        np.testing.assert_array_equal(found_times[order], times)


@pytest.mark.parametrize("version", FORMATS)
def test_the_fixture_is_of_its_format_and_whole(version):
    base = base_of(version)
    files = manifest.read(base).files
    assert f'"format": {version}' in (base / "manifest.json").read_text()
    assert {file.kind == "table" for file in files if file.blocks} <= {True}
    assert any(file.blocks for file in files) == (version == 4)
    assert all(file.sha256 for file in files)
    assert verify(base).problems == []


@pytest.mark.parametrize("version", FORMATS)
def test_a_flipped_bit_of_a_table_is_found_by_its_sha256(version, tmp_path):
    base = tmp_path / "model.ckpt-120"
    shutil.copytree(base_of(version), base)
    file = next(file for file in manifest.read(base).files if file.kind == "table")
    content = bytearray((base / file.name).read_bytes())
    content[len(content) // 2] ^= 1
    (base / file.name).write_bytes(content)
    (problem,) = verify(base).problems
    assert problem.file == file.name
    assert "sha256" in problem.what

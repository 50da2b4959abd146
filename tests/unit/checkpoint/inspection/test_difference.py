"""What `diff` says of two checkpoints, against what the test changed between them."""

from dataclasses import replace

import numpy as np
import pytest

from megalith.checkpoint.inspection.difference import VariableDifference, compare
from megalith.errors import CheckpointDamaged, CheckpointNotFound
from megalith.schema import Adagrad, Segment
from support import at_size, checkpoints
from support.checkpoints import ITEM

PLAIN = replace(checkpoints.USER, admission=None, touched_capacity=0)
IDS = np.arange(100) * 0x0123456789ABCDE


def written(model_dir, step, rows, variables=None, num_ps=2):
    return checkpoints.write(checkpoints.stores_with(rows, variables, num_ps), model_dir, step)


def test_a_model_saved_by_two_servers_and_by_three_is_the_same(tmp_path):
    rows = [(ITEM, IDS, np.ones((100, 3), np.float32), 7)]
    variables = {"w": np.ones(4, np.float32)}
    a = written(tmp_path, 1, rows, variables)
    b = written(tmp_path, 2, rows, variables, num_ps=3)
    found = compare(a, b)
    (table,) = found.tables
    assert found.is_equal
    assert (found.step_a, found.step_b) == (1, 2)
    assert (table.equal, table.changed, table.only_in_a, table.only_in_b) == (100, 0, 0, 0)
    assert found.equal_variables == 1


@pytest.mark.parametrize(("order", "memory_bytes"), [("random", 1 << 20), ("sorted", 1 << 30)])
def test_300000_rows_are_counted_right_in_one_pass_and_in_many(tmp_path, order, memory_bytes):
    ids = at_size.ids_in(order, 300_000)
    before = np.random.default_rng(1).standard_normal((ids.size, 4)).astype(np.float32)
    after = before.copy()
    moved = slice(1000, 51_000)
    after[moved] += 1
    after[777] += 100
    a = written(tmp_path, 1, [(PLAIN, ids[:-3_000], before[:-3_000], 7)])
    b = written(tmp_path, 2, [(PLAIN, ids[500:], after[500:], 7)], num_ps=3)

    found = compare(a, b, memory_bytes=memory_bytes)
    (table,) = found.tables
    assert (table.rows_a, table.rows_b) == (297_000, 299_500)
    assert (table.only_in_a, table.only_in_b) == (500, 3_000)
    assert (table.changed, table.redated) == (50_001, 0)
    assert table.equal == 297_000 - 500 - 50_001
    assert table.largest[0].id == ids[777]
    assert table.largest[0].distance == pytest.approx(200, rel=1e-5)
    assert len(table.largest) == 5
    assert not found.is_equal


def test_rows_that_were_only_written_again_are_counted_apart(tmp_path):
    ones = np.ones((100, 3), np.float32)
    a = written(tmp_path, 1, [(ITEM, IDS, ones, 7)])
    b = written(tmp_path, 2, [(ITEM, IDS, ones, 8)])
    (table,) = compare(a, b).tables
    assert (table.redated, table.changed, table.equal) == (100, 0, 0)
    assert table.largest == []


def test_a_changed_setting_is_named_with_both_values(tmp_path):
    ones = np.ones((100, 3), np.float32)
    faster = replace(ITEM.segments[1], optimizer=Adagrad(0.25, initial_accumulator_value=0.25))
    changed = replace(ITEM, segments=(ITEM.segments[0], faster), expire_days=30)
    a = written(tmp_path, 1, [(ITEM, IDS, ones, 7)])
    b = written(tmp_path, 2, [(changed, IDS, ones, 7)])
    found = compare(a, b)
    (table,) = found.tables
    assert [(each.setting, each.before, each.after) for each in table.settings] == [
        ("expire_days", 36500, 30),
        ("segments.1.optimizer.learning_rate", 0.5, 0.25),
    ]
    assert table.equal == 100
    assert not found.is_equal


def test_of_another_row_layout_only_ids_are_compared(tmp_path):
    wider = replace(ITEM, segments=(*ITEM.segments, Segment(1)))
    a = written(tmp_path, 1, [(ITEM, IDS, np.ones((100, 3), np.float32), 7)])
    b = written(tmp_path, 2, [(wider, IDS[10:], np.ones((90, 4), np.float32), 7)])
    (table,) = compare(a, b).tables
    assert not table.is_comparable
    assert (table.only_in_a, table.only_in_b, table.changed, table.equal) == (10, 0, 0, 0)


def test_tables_and_variables_of_one_side_are_named(tmp_path):
    ones = np.ones((100, 3), np.float32)
    old = {"gone": np.ones(1, np.float32), "grown": np.ones(2, np.float32), "w": np.ones(3, "f4")}
    new = {"new": np.ones(1, np.float32), "grown": np.ones(3, np.float32), "w": np.full(3, 9, "f4")}
    a = written(tmp_path, 1, [(ITEM, IDS, ones, 7)], old)
    b = written(tmp_path, 2, [(replace(ITEM, name="other"), IDS[:9], ones[:9], 7)], new)
    found = compare(a, b)
    assert found.tables_only_in_a == {"item": 100}
    assert found.tables_only_in_b == {"other": 9}
    assert found.variables[:3] == [
        VariableDifference("gone", "only in A"),
        VariableDifference("grown", "float32[2] became float32[3]"),
        VariableDifference("new", "only in B"),
    ]
    assert found.variables[3].variable == "w"
    # A step of adagrad from zeros: -0.1 * g / sqrt(0.1 + g*g)
    expected = abs(0.1 * 9 / np.sqrt(0.1 + 81) - 0.1 / np.sqrt(1.1))
    assert found.variables[3].largest == pytest.approx(expected, rel=1e-4)


def test_a_damaged_side_is_named_and_nothing_is_compared(tmp_path):
    rows = [(ITEM, IDS, np.ones((100, 3), np.float32), 7)]
    a = written(tmp_path, 1, rows)
    b = written(tmp_path, 2, rows)
    damaged = next(b.glob("table-*"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 4
    damaged.write_bytes(content)
    with pytest.raises(CheckpointDamaged, match=damaged.name):
        compare(a, b)

    with pytest.raises(CheckpointNotFound, match=r"model\.ckpt-3"):
        compare(a, tmp_path / "model.ckpt-3")

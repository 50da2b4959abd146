"""Calls that cannot be carried out raise a typed error and leave the table as it was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from megalith.ps.table import EmbeddingTable
from megalith.wire import errors
from megalith.wire.schema import Adagrad, Segment, Sgd, TableConfig, Zeros

KEYS = np.array([1, 2], np.int64)
ROWS = np.ones((2, 3), np.float32)


@pytest.fixture(name="table")
def table_fixture() -> EmbeddingTable:
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd()), Segment(2, Zeros(), Adagrad()))))
    table.assign(np.array([1, 9], np.int64), ROWS, 100)
    return table


BAD_CALLS: dict[str, tuple[type[errors.MegalithError], str, Callable[[EmbeddingTable], Any]]] = {
    "keys of int32": (errors.MalformedArray, "int32", lambda t: t.lookup(KEYS.astype(np.int32))),
    "keys of two dimensions": (errors.MalformedArray, "shape", lambda t: t.lookup(KEYS.reshape(1, 2))),
    "every second key": (errors.MalformedArray, "contiguous", lambda t: t.contains(np.arange(4)[::2])),
    "out of the wrong width": (errors.ShapeMismatch, "need", lambda t: t.lookup(KEYS, np.empty((2, 4), np.float32))),
    "values of float64": (errors.MalformedArray, "float64", lambda t: t.assign(KEYS, ROWS.astype(np.float64))),
    "values too narrow": (errors.ShapeMismatch, r"\(2, 2\)", lambda t: t.assign(KEYS, ROWS[:, :2].copy())),
    "values not contiguous": (errors.MalformedArray, "contig", lambda t: t.assign(KEYS, np.ones((3, 2), np.float32).T)),
    "one row too few": (errors.ShapeMismatch, r"\(1, 3\)", lambda t: t.assign_add(KEYS, ROWS[:1])),
    "values with NaN": (errors.NonFiniteValue, "first is row 1", lambda t: t.assign(KEYS, _spoiled(np.nan))),
    "gradients with NaN": (errors.NonFiniteValue, "1 rows", lambda t: t.apply_gradients(KEYS, _spoiled(np.nan))),
    "gradients with inf": (errors.NonFiniteValue, "row 1", lambda t: t.apply_gradients(KEYS, _spoiled(-np.inf))),
    "one rate for two segments": (errors.ShapeMismatch, "2 segments", lambda t: t.apply_gradients(KEYS, ROWS, [0.1])),
    "a rate of NaN": (errors.NonFiniteValue, "rates", lambda t: t.apply_gradients(KEYS, ROWS, [0.1, np.nan])),
    "a negative step": (errors.InvalidRequest, "step -1", lambda t: t.apply_gradients(KEYS, ROWS, [1, 1], step=-1)),
    "a negative time": (errors.InvalidRequest, "time -1", lambda t: t.assign(KEYS, ROWS, -1)),
    "a time after 2106": (errors.InvalidRequest, "time", lambda t: t.assign(KEYS, ROWS, 2**32)),
    "a shard that is none": (errors.InvalidRequest, "shard 3 of 3", lambda t: t.dump(3, 3)),
    "a dump of no rows": (errors.InvalidRequest, "limit 0", lambda t: t.dump(limit=0)),
    "loading another width": (errors.ShapeMismatch, "need", lambda t: t.load(KEYS, ROWS, KEYS)),
    "loading other optimizers": (
        errors.TableConflict,
        "1:ftrl",
        lambda t: t.load(KEYS, _whole(), KEYS, "1:ftrl,2:sgd"),
    ),
    "loading keys twice": (errors.DuplicateKeys, "e.g. 1", lambda t: t.load(np.array([1, 1]), _whole(), KEYS)),
    "loading with a time too few": (errors.ShapeMismatch, "1 times", lambda t: t.load(KEYS, _whole(), KEYS[:1])),
}


def _spoiled(value: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    rows = ROWS.copy()
    rows[1, 2] = value
    return rows


def _whole() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones((2, 5), np.float32)


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_is_refused_and_changes_nothing(table: EmbeddingTable, case: str) -> None:
    before = table.dump()
    error, message, call = BAD_CALLS[case]
    with pytest.raises(error, match=message):
        call(table)
    after = table.dump()
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert table.max_update_s == 100


def test_an_empty_batch_is_no_work() -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(3, Zeros(), Sgd()),)))
    none, no_rows = np.empty(0, np.int64), np.empty((0, 3), np.float32)
    assert table.lookup(none).shape == (0, 3)
    for result in (table.assign(none, no_rows), table.apply_gradients(none, no_rows), table.load(none, no_rows, none)):
        assert result.created == 0
    assert table.reinitialize(none).size == 0
    assert table.size == 0


@pytest.mark.parametrize("dedup", [False, True])
def test_gradients_that_are_not_finite_are_skipped_and_counted_when_asked(dedup: bool) -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd()),), skip_nonfinite=True))
    grads = np.array([[1], [np.nan], [2], [np.inf]], np.float32)
    result = table.apply_gradients(np.array([1, 1, 2, 3], np.int64), grads, [1], dedup=dedup)
    assert (result.nonfinite, result.created) == (2, 2)
    np.testing.assert_array_equal(table.lookup(np.array([1, 2, 3], np.int64)), [[-1], [-2], [0]])
    assert table.stats().nonfinite == 2


def test_a_sum_that_overflows_is_refused() -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd()),)))
    with pytest.raises(errors.NonFiniteValue):
        table.apply_gradients(np.array([1, 1], np.int64), np.full((2, 1), 3e38, np.float32), [1], dedup=True)
    assert table.size == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"expire_days": -1},
        {"expire_days_by_slot": {32768: 1}},
        {"expire_days_by_slot": {5: -1}},
        {"max_expire_share": 0.0},
        {"max_expire_share": 1.5},
        {"memory_budget_bytes": -1},
        {"initial_capacity": -1},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidSetting, match="table t"):
        TableConfig("t", (Segment(1, Zeros(), Sgd()),), **settings)


def test_a_segment_without_floats_is_refused() -> None:
    with pytest.raises(errors.InvalidSetting, match="dim 0"):
        Segment(0, Zeros(), Sgd())

"""Calls that cannot be carried out raise a typed error and leave the table as it was."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from megalith import errors
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.schema import (
    Adagrad,
    AdmissionConfig,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    Zeros,
)

KEYS = np.array([1, 2], np.int64)
ROWS = np.ones((2, 3), np.float32)


@pytest.fixture(name="table")
def table_fixture() -> EmbeddingTable:
    """One with all that a call might change: rows, one of them expired, a filter that counts,
    touched keys."""
    config = TableConfig(
        "t",
        (Segment(1, Zeros(), Sgd()), Segment(2, RandomUniform(), Adagrad())),
        expire_days_by_slot={0: 10, 1: 0},
        admission=AdmissionConfig(default_threshold=1, capacity=1000),
        touched_capacity=100,
    )
    table = EmbeddingTable(config, clock=lambda: 200)
    for _ in range(2):
        table.apply_gradients(
            np.array([1, 9, 1 << 48], np.int64), np.ones((3, 3), np.float32), req_time_s=100
        )
    table.assign(np.array([5], np.int64), ROWS[:1])  # counted once
    return table


def everything(table: EmbeddingTable) -> list[object]:
    """All that the table holds, to the last bit."""
    assert table.admission is not None
    filter_state = [(name, array.tobytes()) for name, array in table.admission.state().items()]
    rows = [part.tobytes() for part in table.dump(with_expired=True)[1:]]
    stats = replace(table.stats(), looked_up=0, found=0)
    return [
        rows,
        filter_state,
        table.changes.size,
        stats,
        table.max_update_s,
        table.config,
    ]


BAD_CALLS: dict[str, tuple[type[errors.MegalithError], str, Callable[[EmbeddingTable], Any]]] = {
    "values with NaN": (
        errors.NonFiniteValue,
        "first is row 1",
        lambda t: t.assign(KEYS, _spoiled(np.nan)),
    ),
    "gradients with NaN": (
        errors.NonFiniteValue,
        "1 rows",
        lambda t: t.apply_gradients(KEYS, _spoiled(np.nan)),
    ),
    "gradients with inf": (
        errors.NonFiniteValue,
        "row 1",
        lambda t: t.apply_gradients(KEYS, _spoiled(-np.inf)),
    ),
    "one rate for two segments": (
        errors.ShapeMismatch,
        "2 segments",
        lambda t: t.apply_gradients(KEYS, ROWS, [0.1]),
    ),
    "a negative rate": (
        errors.InvalidRequest,
        "0 or more",
        lambda t: t.apply_gradients(KEYS, ROWS, [0.1, -0.1]),
    ),
    "a rate of NaN": (
        errors.NonFiniteValue,
        "rates",
        lambda t: t.apply_gradients(KEYS, ROWS, [0.1, np.nan]),
    ),
    "a negative step": (
        errors.InvalidRequest,
        "step -1",
        lambda t: t.apply_gradients(KEYS, ROWS, [1, 1], step=-1),
    ),
    "a negative time": (errors.InvalidRequest, "time -1", lambda t: t.assign(KEYS, ROWS, -1)),
    "a time after 2106": (errors.InvalidRequest, "time", lambda t: t.assign(KEYS, ROWS, 2**32)),
    "a share that is none": (errors.InvalidRequest, "share 3 of 3", lambda t: t.dump(3, 3)),
    "a dump of no rows": (errors.InvalidRequest, "limit 0", lambda t: t.dump(limit=0)),
    "loading another width": (errors.ShapeMismatch, "need", lambda t: t.load(KEYS, ROWS, KEYS)),
    "loading other optimizers": (
        errors.TableConflict,
        "1:ftrl",
        lambda t: t.load(KEYS, _whole(), KEYS, "1:ftrl,2:sgd"),
    ),
    "loading keys twice": (
        errors.DuplicateIds,
        "e.g. 1",
        lambda t: t.load(np.array([1, 1]), _whole(), KEYS),
    ),
    "rows to fill that are read-only": (
        errors.MalformedArray,
        "read-only",
        lambda t: t.lookup(KEYS, _frozen()),
    ),
    "gradients at a time after 2106": (
        errors.InvalidRequest,
        "time 4294967296",
        lambda t: t.apply_gradients(KEYS, ROWS, req_time_s=2**32),
    ),
    "a step of 2^48": (
        errors.InvalidRequest,
        "step 281",
        lambda t: t.apply_gradients(KEYS, ROWS, step=2**48),
    ),
    "three rates": (
        errors.ShapeMismatch,
        r"\(3,\)",
        lambda t: t.apply_gradients(KEYS, ROWS, [1, 1, 1]),
    ),
    "a sum that overflows": (
        errors.NonFiniteValue,
        "summed by id",
        lambda t: t.apply_gradients(
            np.array([1, 1]), np.full((2, 3), 3e38, np.float32), dedup=True
        ),
    ),
    "loading a time after 2106": (
        errors.InvalidRequest,
        "time 4294967296",
        lambda t: t.load(KEYS, _whole(), np.array([1, 2**32])),
    ),
    "other rows": (
        errors.TableConflict,
        "exists with rows 1:sgd,2:adagrad, asked for 3:sgd",
        lambda t: t.reconfigure(TableConfig("t", (Segment(3, Zeros(), Sgd()),), expire_days=1)),
    ),
    "loading with a time too few": (
        errors.ShapeMismatch,
        "1 times",
        lambda t: t.load(KEYS, _whole(), KEYS[:1]),
    ),
}


def _spoiled(value: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    rows = ROWS.copy()
    rows[1, 2] = value
    return rows


def _frozen() -> np.ndarray[Any, np.dtype[np.float32]]:
    rows = ROWS.copy()
    rows.flags.writeable = False
    return rows


def _whole() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones((2, 5), np.float32)


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_is_refused_and_changes_nothing(table: EmbeddingTable, case: str) -> None:
    before = everything(table)
    error, message, call = BAD_CALLS[case]
    with pytest.raises(error, match=message):
        call(table)
    assert everything(table) == before


BY_KEYS: dict[str, Callable[[EmbeddingTable, Any], Any]] = {
    "lookup": lambda t, keys: t.lookup(keys),
    "lookup_entry": lambda t, keys: t.lookup_entry(keys),
    "contains": lambda t, keys: t.contains(keys),
    "erase": lambda t, keys: t.erase(keys),
    "reinitialize": lambda t, keys: t.reinitialize(keys),
    "assign": lambda t, keys: t.assign(keys, ROWS),
    "assign_add": lambda t, keys: t.assign_add(keys, ROWS),
    "apply_gradients": lambda t, keys: t.apply_gradients(keys, ROWS),
    "load": lambda t, keys: t.load(keys, _whole(), KEYS),
}
BAD_KEYS: dict[str, Any] = {
    "int32": KEYS.astype(np.int32),
    "uint64": KEYS.astype(np.uint64),
    "float64": KEYS.astype(np.float64),
    ">i8": KEYS.astype(">i8"),
    "bool": KEYS.astype(np.bool_),
    r"shape \(1, 2\)": KEYS.reshape(1, 2),
    r"shape \(\)": np.array(1),
    "contiguous": np.array([1, 2, 1, 2], np.int64)[::2],
    "list": [1, 2],
}


@pytest.mark.parametrize("kind", BAD_KEYS)
@pytest.mark.parametrize("call", BY_KEYS)
def test_ids_of_another_kind_are_refused_by_every_call(
    table: EmbeddingTable, call: str, kind: str
) -> None:
    before = everything(table)
    with pytest.raises(errors.MalformedArray, match=kind):
        BY_KEYS[call](table, BAD_KEYS[kind])
    assert everything(table) == before


BY_FLOATS: dict[str, tuple[int, Callable[[EmbeddingTable, Any], Any]]] = {
    "lookup": (3, lambda t, floats: t.lookup(KEYS, floats)),
    "assign": (3, lambda t, floats: t.assign(KEYS, floats)),
    "assign_add": (3, lambda t, floats: t.assign_add(KEYS, floats)),
    "apply_gradients": (3, lambda t, floats: t.apply_gradients(KEYS, floats)),
    "load": (5, lambda t, floats: t.load(KEYS, floats, KEYS)),
}
BAD_FLOATS: dict[str, tuple[type[errors.MegalithError], str, Callable[[int], Any]]] = {
    "float64": (errors.MalformedArray, "float64", lambda width: np.ones((2, width))),
    "float16": (errors.MalformedArray, "float16", lambda width: np.ones((2, width), np.float16)),
    "int32": (errors.MalformedArray, "int32", lambda width: np.ones((2, width), np.int32)),
    "columns first": (
        errors.MalformedArray,
        "contiguous",
        lambda width: np.ones((width, 2), np.float32).T,
    ),
    "every second": (
        errors.MalformedArray,
        "contiguous",
        lambda width: np.ones((2, 2 * width), np.float32)[:, ::2],
    ),
    "a list": (errors.MalformedArray, "list", lambda width: [[1.0] * width] * 2),
    "too wide": (
        errors.ShapeMismatch,
        r"need \(2, ",
        lambda width: np.ones((2, width + 1), np.float32),
    ),
    "too narrow": (
        errors.ShapeMismatch,
        r"need \(2, ",
        lambda width: np.ones((2, width - 1), np.float32),
    ),
    "a row too few": (
        errors.ShapeMismatch,
        r"\(1, ",
        lambda width: np.ones((1, width), np.float32),
    ),
    "flat": (errors.ShapeMismatch, r"need \(2, ", lambda width: np.ones(2 * width, np.float32)),
}


@pytest.mark.parametrize("kind", BAD_FLOATS)
@pytest.mark.parametrize("call", BY_FLOATS)
def test_floats_of_another_kind_or_shape_are_refused_by_every_call(
    table: EmbeddingTable, call: str, kind: str
) -> None:
    before = everything(table)
    error, message, build = BAD_FLOATS[kind]
    width, perform = BY_FLOATS[call]
    with pytest.raises(error, match=message):
        perform(table, build(width))
    assert everything(table) == before


def test_an_empty_batch_is_no_work() -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(3, Zeros(), Sgd()),)))
    none, no_rows = np.empty(0, np.int64), np.empty((0, 3), np.float32)
    assert table.lookup(none).shape == (0, 3)
    for result in (
        table.assign(none, no_rows),
        table.apply_gradients(none, no_rows),
        table.load(none, no_rows, none),
    ):
        assert result.created == 0
    assert (
        table.reinitialize(none).size
        == table.contains(none).size
        == table.lookup_entry(none).times.size
        == 0
    )
    assert (table.assign_add(none, no_rows).created, table.erase(none), table.size) == (0, 0, 0)


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
        table.apply_gradients(
            np.array([1, 1], np.int64), np.full((2, 1), 3e38, np.float32), [1], dedup=True
        )
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

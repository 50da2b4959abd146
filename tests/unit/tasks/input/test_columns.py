"""What becomes of the values of a column, and what is refused."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import megalith.client as mg
from megalith.errors import BadData, InvalidSetting
from megalith.tasks.input.columns import DenseColumn, IdColumn, Label, TimeColumn, as_groups

USER = IdColumn("user", "user")
TAGS = IdColumn("tags", "tags", is_list=True)


def column(values, kind=None):
    return pa.chunked_array([pa.array(values, kind)])


@pytest.mark.parametrize(
    ("values", "kind", "same"),
    [
        (["ann", "bob", "ann", ""], pa.string(), ["ann", "bob", "ann", ""]),
        (["ann", "bob"], pa.large_string(), ["ann", "bob"]),
        (
            ["ann", "bob, who has a longer name"],
            pa.string_view(),
            ["ann", "bob, who has a longer name"],
        ),
        ([b"ann", b"\xff"], pa.binary_view(), [b"ann", b"\xff"]),
        (["ann", "bob", "ann"], pa.dictionary(pa.int8(), pa.string()), ["ann", "bob", "ann"]),
        ([b"ann", b"\xff"], pa.binary(), [b"ann", b"\xff"]),
        ([b"ab", b"\xff\x00"], pa.binary(2), [b"ab", b"\xff\x00"]),
        ([5, -1, 5], pa.int8(), [5, -1, 5]),
        ([Decimal(2**62 + 1), Decimal(-1)], pa.decimal128(38, 0), [2**62 + 1, -1]),
        ([Decimal("7.00")], pa.decimal128(10, 2), [7]),
        ([2**64 - 1, 7], pa.uint64(), np.array([2**64 - 1, 7], np.uint64)),
        ([True, False], pa.bool_(), [1, 0]),
        ([5.0, 2.0], pa.float64(), [5, 2]),
        ([datetime.date(1970, 1, 3)], pa.date32(), [2]),
    ],
)
def test_ids_are_those_of_the_public_hash(values, kind, same):
    ids, missing = USER.ids(column(values, kind), "here")
    np.testing.assert_array_equal(ids.values, mg.hash_ids(same))
    np.testing.assert_array_equal(ids.row_splits, np.arange(len(values) + 1))
    assert not missing.any()


@pytest.mark.parametrize(
    ("values", "kind"),
    [(["ann", None, "bob"], pa.string()), ([1.0, None, 2.0], pa.float64())],
)
def test_a_missing_value_has_no_id_and_is_counted(values, kind):
    ids, missing = USER.ids(column(values, kind), "here")
    np.testing.assert_array_equal(ids.row_splits, [0, 1, 1, 2])
    np.testing.assert_array_equal(missing, [0, 1, 0])


def test_nan_is_a_missing_id():
    ids, missing = USER.ids(column([1.0, float("nan")]), "here")
    np.testing.assert_array_equal(ids.row_splits, [0, 1, 1])
    np.testing.assert_array_equal(missing, [0, 1])


def test_a_column_without_any_value_has_no_ids():
    ids, missing = USER.ids(column([None, None], pa.null()), "here")
    np.testing.assert_array_equal(ids.row_splits, [0, 0, 0])
    np.testing.assert_array_equal(missing, [1, 1])


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())])
def test_lists_are_ragged_and_an_empty_one_lacks_nothing(kind):
    ids, missing = TAGS.ids(column([[1, 2], [], None, [3, None, 4]], kind), "here")
    np.testing.assert_array_equal(ids.values, mg.hash_ids([1, 2, 3, 4]))
    np.testing.assert_array_equal(ids.row_splits, [0, 2, 2, 2, 4])
    np.testing.assert_array_equal(missing, [0, 0, 1, 1])


def test_lists_of_a_slice_and_of_fixed_size_are_read_too():
    values = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2))
    ids, _ = TAGS.ids(pa.chunked_array([values]).slice(1), "here")
    np.testing.assert_array_equal(ids.values, mg.hash_ids([3, 4, 5, 6]))


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_text_without_a_value_between_separators_has_no_id(is_dictionary):
    texts = pa.array(["5|7", "", None, "|7||", "|", "5"])
    chunk = texts.dictionary_encode() if is_dictionary else texts
    ids, missing = IdColumn("l", "l", is_list=True).ids(pa.chunked_array([chunk]), "x")
    np.testing.assert_array_equal(ids.row_splits, [0, 2, 2, 2, 3, 3, 4])
    np.testing.assert_array_equal(ids.values, mg.hash_ids(["5", "7", "7", "5"]))
    np.testing.assert_array_equal(missing, [0, 0, 1, 0, 0, 0])


def test_a_list_may_be_text_with_separators():
    ids, missing = TAGS.ids(column(["Action|War", "Drama", None]), "here")
    np.testing.assert_array_equal(ids.values, mg.hash_ids(["Action", "War", "Drama"]))
    np.testing.assert_array_equal(ids.row_splits, [0, 2, 3, 3])
    np.testing.assert_array_equal(missing, [0, 0, 1])


@pytest.mark.parametrize(
    ("use", "values", "kind", "complaint"),
    [
        (USER, [0.5, 1.0], None, "here: ids are made of integers and text, and not all .* --dense"),
        (USER, [Decimal("0.5")], None, "here: ids are made of integers and text, .* --dense"),
        (USER, [Decimal(2**63)], None, "here: ids are made of integers and text"),
        (USER, [[1], [2]], None, "here: no ids are made of list.*; use --lists"),
        (TAGS, [1, 2], None, "here: int64 is neither a list nor text; use --features"),
        (USER, [datetime.datetime(2020, 1, 1)], None, "here: no ids are made of timestamp"),
        (USER, [5.0, float("inf")], None, "here: ids are made of integers and text"),
    ],
)
def test_a_column_that_gives_no_ids_is_refused_with_the_way_out(use, values, kind, complaint):
    with pytest.raises(BadData, match=complaint):
        use.ids(column(values, kind), "here")


@pytest.mark.parametrize(
    ("kind", "digits"), [(pa.float16(), 11), (pa.float32(), 24), (pa.float64(), 53)]
)
def test_floats_that_had_to_be_rounded_are_no_ids(kind, digits):
    """A program that writes int64 ids with gaps as floats makes one id of several."""
    exact = 2**digits - 1
    ids, _ = USER.ids(column([float(exact), float(-exact), None], kind), "here")
    np.testing.assert_array_equal(ids.values, mg.hash_ids([exact, -exact]))

    for rounded in (2.0**digits, -(2.0**digits), 2.0**digits + 8):
        values = column([1.0, None, rounded], kind)
        with pytest.raises(BadData, match=r"here: .* rounds whole numbers from .* as int64"):
            USER.ids(values, "here")

    lists = pa.chunked_array([pa.array([[1.0], [2.0**digits]], pa.list_(kind))])
    with pytest.raises(BadData, match=r"here: .* different ids may have become one"):
        TAGS.ids(lists, "here")


def not_utf8():
    """Text as programs write it into Parquet that check nothing."""
    ends = np.array([0, 2, 6], np.int32)
    return pa.StringArray.from_buffers(2, pa.py_buffer(ends), pa.py_buffer(b"okcaf\xe9"))


@pytest.mark.parametrize("use", [USER, TAGS])
def test_text_that_is_not_utf8_is_refused_by_its_place(use):
    with pytest.raises(BadData, match=r"here: a text is not UTF-8, it begins with b'caf\\xe9'"):
        use.ids(pa.chunked_array([not_utf8()]), "here")


def test_groups_are_text_and_equal_ones_one_object():
    values = column(["a", None, "a", "b"] * 5)
    groups = as_groups(values, "here")
    assert groups.tolist() == ["a", "missing", "a", "b"] * 5
    assert len({id(group) for group in groups}) == 3

    assert as_groups(column([5, None, 7]), "here").tolist() == ["5", "missing", "7"]


def test_one_long_text_does_not_make_all_groups_long():
    """As an array of NumPy's text, these would be 40 GB."""
    longest = "y" * 1_000_000
    values = column(["x"] * 9_999 + [longest])
    groups = as_groups(values, "here")
    assert groups[-1] == "y" * 100 + "..."
    assert groups[0] == "x"


def test_groups_of_text_that_is_not_utf8_are_refused():
    with pytest.raises(BadData, match="here: a text is not UTF-8"):
        as_groups(pa.chunked_array([not_utf8()]), "here")


def test_labels_are_numbers_truths_or_comparisons():
    np.testing.assert_array_equal(Label("c").values(column([0, 1, 1]), "here"), [0, 1, 1])
    np.testing.assert_array_equal(Label("c").values(column([True, False]), "here"), [1, 0])
    label = Label.parse("rating >= 4")
    assert label.column == "rating"
    np.testing.assert_array_equal(label.values(column([3, 4, 5]), "here"), [0, 1, 1])


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([0, 1, 5, 4], "here: 2 labels are outside 0..1, the first is 5 in row 2; .*'c>=2.5'"),
        ([92, 3, 4, 5, 6], "here: 5 labels are outside 0..1, the first is 92 in row 0; .*'c>=5'"),
        ([0, 0, 0, 9], "here: 1 label is outside 0..1, the first is 9 in row 3; .*'c>0'"),
        (
            [0, None, 1],
            "here: the label is missing in 1 row, the first is row 1; leave such rows out of the file",
        ),
        (
            [0.0, float("nan")],
            "here: the label is missing in 1 row, the first is row 1; leave such rows out of the file",
        ),
        (["yes", "no"], "here: string is no number; a label is a number, or --label compares one"),
    ],
)
def test_wrong_labels_are_refused_with_their_row(values, complaint):
    with pytest.raises(BadData, match=complaint):
        Label("c").values(column(values), "here")


def test_a_comparison_with_no_number_is_refused():
    with pytest.raises(InvalidSetting, match="--label=rating>=x: 'x' is not a number"):
        Label.parse("rating>=x")
    with pytest.raises(InvalidSetting, match="--label=rating=>4: a comparison is one of >=, >, =="):
        Label.parse("rating=>4")


@pytest.mark.parametrize("text", ["click>", "click>=", "click ==  ", "click<="])
def test_a_comparison_without_a_number_is_refused(text):
    operator = text.removeprefix("click").strip()
    with pytest.raises(
        InvalidSetting, match=f"--label={text}: a number is missing after {operator};"
    ):
        Label.parse(text)


def test_dense_values_that_are_missing_or_infinite_are_nan():
    values = column([1.5, None, float("inf"), -3.0])
    np.testing.assert_array_equal(DenseColumn("c").values(values, "x"), [1.5, np.nan, np.nan, -3])
    logs = DenseColumn("c", is_log=True).values(values, "x")
    np.testing.assert_allclose(logs, [np.log(2.5), np.nan, np.nan, -np.log(4)])


def test_dense_text_is_refused_with_the_way_out():
    with pytest.raises(BadData, match="here: string is no number; use --features for it"):
        DenseColumn("c").values(column(["north"]), "here")


@pytest.mark.parametrize(
    ("time", "values", "kind"),
    [
        (TimeColumn("t"), [1_700_000_000], pa.int64()),
        (TimeColumn("t", "ms"), [1_700_000_000_123], pa.int64()),
        (TimeColumn("t"), [datetime.datetime(2023, 11, 14, 22, 13, 20)], pa.timestamp("us")),
        (TimeColumn("t"), [1_700_000_000_123_456_789], pa.timestamp("ns")),
    ],
)
def test_times_become_unix_seconds(time, values, kind):
    np.testing.assert_array_equal(time.values(column(values, kind), "x"), [1_700_000_000])


def test_a_date_is_its_first_second():
    values = column([datetime.date(2023, 11, 14)])
    np.testing.assert_array_equal(TimeColumn("t").values(values, "x"), [1_699_920_000])


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([1_700_000_000_123], "here: .* after the year 2286; say the unit, .* --time t:ms"),
        ([None, 5], "here: the time is missing in 1 row, the first is row 0"),
        (["noon"], "here: string is no time; expected a timestamp, a date or an integer"),
        ([None, "noon"], "here: string is no time.*name another column with --time"),
        ([5, -7], "here: the time of row 1 is 7 seconds before 1970"),
        ([datetime.datetime(2300, 1, 1)], "here: .* after the year 2286"),
        (pa.array([2**64 - 1], pa.uint64()), "here: these are no times since 1970"),
    ],
)
def test_wrong_times_are_refused(values, complaint):
    with pytest.raises(BadData, match=complaint):
        TimeColumn("t").values(column(values), "here")


def test_numbers_that_are_too_great_for_float32_are_missing():
    column = pa.chunked_array([pa.array([1e300, -1e39, 2.0, float("inf")])])
    found = DenseColumn("x").values(column, "here")
    np.testing.assert_array_equal(found, [np.nan, np.nan, 2.0, np.nan])
    logs = DenseColumn("x", is_log=True).values(column, "here")
    np.testing.assert_allclose(logs[0], np.log(1e300))
    assert np.isnan(logs[3])

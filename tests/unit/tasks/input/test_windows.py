"""Files of a pattern by date and hour: which are read, in which order, and what is left out."""

import pytest

from megalith.errors import BadData, InvalidSetting
from megalith.tasks.ctr_options import CtrOptions
from megalith.tasks.input.files import found_files
from megalith.tasks.input.windows import DatedPattern, Window, check_patterns, left_out


def touch(folder, *paths):
    for path in paths:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def found(folder, pattern, start="", end=""):
    paths = found_files([str(folder / pattern)], Window.parse(start, end))
    return [path.removeprefix(f"{folder}/") for path in paths]


def test_hours_of_a_window_come_in_the_order_of_time(tmp_path):
    touch(
        tmp_path,
        "2026-11-02/00/a.parquet",
        "2026-11-01/23/b.parquet",
        "2026-11-01/23/a.parquet",
        "2026-11-01/05/z.parquet",
        "2026-11-01/04/a.parquet",
        "2026-11-02/01/a.parquet",
    )
    assert found(tmp_path, "{date}/{hour}/*.parquet", "2026-11-01T05", "2026-11-02T00") == [
        "2026-11-01/05/z.parquet",
        "2026-11-01/23/a.parquet",
        "2026-11-01/23/b.parquet",
        "2026-11-02/00/a.parquet",
    ]


def test_files_of_several_patterns_come_in_the_order_of_time(tmp_path):
    touch(tmp_path, "app/20261101.csv", "app/20261102.csv", "web/20261101.csv", "web/20261102.csv")
    patterns = [str(tmp_path / name / "{date}.csv") for name in ("web", "app")]
    paths = found_files(patterns, Window.parse("", ""))
    assert [path.removeprefix(f"{tmp_path}/") for path in paths] == [
        "app/20261101.csv",
        "web/20261101.csv",
        "app/20261102.csv",
        "web/20261102.csv",
    ]
    touch(tmp_path, "old.csv")  # of no time: as they are named
    paths = found_files([str(tmp_path / "old.csv"), *patterns], Window.parse("", ""))
    assert [path.removeprefix(f"{tmp_path}/") for path in paths][:2] == [
        "old.csv",
        "web/20261101.csv",
    ]


def test_a_day_as_end_has_all_its_hours(tmp_path):
    touch(tmp_path, "20261101/00.csv", "20261101/23.csv", "20261102/00.csv")
    assert found(tmp_path, "{date}/{hour}.csv", "2026-11-01", "20261101") == [
        "20261101/00.csv",
        "20261101/23.csv",
    ]


def test_the_date_may_be_inside_a_name_and_in_two_places(tmp_path):
    touch(
        tmp_path,
        "d=20261101/log-20261101-1.csv",
        "d=20261101/log-20261103-1.csv",  # the two dates differ: it has none
        "d=20261102/log-20261102-x.csv",
    )
    pattern = "d={date}/log-{date}-*.csv"
    assert found(tmp_path, pattern, "20261102") == ["d=20261102/log-20261102-x.csv"]
    lines = left_out([str(tmp_path / pattern)], Window.parse("", ""))
    assert len(lines) == 1
    assert "1 file has no date" in lines[0]


def test_wildcards_are_those_of_other_patterns(tmp_path):
    touch(tmp_path, "a/b/20261101/x1.csv", "20261101/x2.csv", "20261101/y1.csv", "20261101/x9.csv")
    assert found(tmp_path, "**/{date}/x[!2]*.csv") == ["20261101/x9.csv", "a/b/20261101/x1.csv"]
    assert found(tmp_path, "{date}/?[12].csv") == ["20261101/x2.csv", "20261101/y1.csv"]


def test_what_is_no_day_is_no_date(tmp_path):
    touch(tmp_path, "20260231/a.csv", "latest/a.csv", "20260301/a.csv")
    assert found(tmp_path, "{date}/*.csv") == ["20260301/a.csv"]
    [line] = left_out([str(tmp_path / "{date}/*.csv")], Window.parse("", ""))
    assert "2 files have no date" in line


def test_hours_without_a_file_are_said(tmp_path):
    touch(tmp_path, "2026-11-01/00/a.csv", "2026-11-01/03/a.csv")
    window = Window.parse("2026-11-01T00", "2026-11-01T04")
    pattern = str(tmp_path / "{date}/{hour}/*.csv")
    [line] = left_out([pattern], window)
    assert "3 hours have no file, the first is 2026-11-01T01" in line

    days = DatedPattern(str(tmp_path / "{date}/03/*.csv"))
    missing = days.find(Window.parse("2026-10-31", "2026-11-02")).missing
    assert [days.said(hour) for hour in missing] == ["2026-10-31", "2026-11-02"]


def test_a_window_without_any_file_is_an_error(tmp_path):
    touch(tmp_path, "2026-11-01/a.csv")
    with pytest.raises(BadData, match="no such file"):
        found(tmp_path, "{date}/*.csv", "2026-12-01")


@pytest.mark.parametrize(
    ("pattern", "start", "end", "message"),
    [
        ("x/*.csv", "2026-11-01", "", "has no {date}"),
        ("{hour}/x.csv", "", "", "but no {date}"),
        ("{date}/x.csv", "2026-11-01T05", "", "has no {hour}"),
        ("{date}/x.csv", "", "2026-11-01T22", "has no {hour}"),
        ("{date}/x.csv", "2026-11-02", "2026-11-01", "is after --end"),
        ("{date}/x.csv", "yesterday", "", "--start=yesterday"),
        ("{date}/x.csv", "", "2026-02-30", "--end=2026-02-30"),
    ],
)
def test_a_window_that_cannot_be_is_refused(pattern, start, end, message):
    with pytest.raises(InvalidSetting, match=message):
        check_patterns([pattern], Window.parse(start, end))


def test_overwrite_end_date_replaces_an_end_that_is_defined():
    told = {"data": "{date}/*.csv", "label": "y", "features": "a", "start": "2026-11-01"}
    first = Window.parse("2026-11-01", "2026-11-03")
    options = CtrOptions(**told, end="2026-11-07", overwrite_end_date="2026-11-03")
    assert options.window() == first
    assert CtrOptions(**told, end="2026-11-03", overwrite_end_date="").window() == first
    without_end = CtrOptions(**told, overwrite_end_date="2026-11-03")
    assert without_end.window() == Window.parse("2026-11-01", "")

"""A stream of files: new ones are picked up, and the cursor says what was read."""

import os
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megalith.controller.codec import _MAX_CURSOR
from megalith.errors import BadData, InvalidRequest
from megalith.tasks.input import read_files
from megalith.tasks.input.file_stream import FileStream, StreamSettings
from megalith.tasks.input.read_files import ReadFiles, hash_of
from megalith.tasks.input.windows import Window
from megalith.wire.reports import InputCounts

SCHEMA = pa.schema([("n", pa.int64())])


def write(path, start, stop, group=30):
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.parent / f".{path.name}"
    table = pa.table(
        {"n": pa.array(range(start, stop), pa.int64()), "other": ["x"] * (stop - start)}
    )
    pq.write_table(table, hidden, row_group_size=group)
    os.replace(hidden, path)


def stream(pattern, index=0, count=1, batch_size=50, idle_s=0.05, window=None, **options):
    settings = StreamSettings(
        [str(pattern)], window or Window(), batch_size, idle_s=idle_s, poll_s=0.01, **options
    )
    return FileStream(settings, SCHEMA, index=index, count=count)


def numbers(batches):
    return [n for batch in batches for n in batch.batch.column("n").to_pylist()]


def test_a_column_that_has_its_first_values_in_a_later_file_has_one_kind_from_then_on(tmp_path):
    """5 and the text "5" are different ids, whichever file had none."""
    columns = {"a": pa.nulls(2), "b": ["5", "6"], "c": pa.nulls(2), "d": [5, 6]}
    for name, values in columns.items():
        pq.write_table(pa.table({"n": values}), tmp_path / f"{name}.parquet")

    settings = StreamSettings([f"{tmp_path}/*.parquet"], Window(), 2, idle_s=0.05, poll_s=0.01)
    batches = FileStream(settings, pa.schema([("n", pa.null())])).batches(b"")
    assert [numbers([next(batches)]) for _ in range(3)] == [[None] * 2, ["5", "6"], [None] * 2]
    with pytest.raises(BadData, match=r"d\.parquet: column n is int64, but string in"):
        next(batches)


@pytest.fixture
def hours(tmp_path):
    for hour in range(5):
        write(tmp_path / f"2026-11-01/{hour:02d}/a.parquet", hour * 130, (hour + 1) * 130)
    return tmp_path / "{date}/{hour}/*.parquet"


def test_files_are_read_in_the_order_of_time_in_full_batches(hours):
    batches = list(stream(hours).batches(b""))
    assert numbers(batches) == list(range(650))
    assert [len(batch.batch) for batch in batches] == [50] * 13
    assert batches[0].where.endswith("00/a.parquet, row group 0")  # where it begins


def test_a_window_bounds_the_stream(hours):
    window = Window.parse("2026-11-01T01", "2026-11-01T02")
    assert numbers(stream(hours, window=window).batches(b"")) == list(range(130, 390))


def test_reading_goes_on_at_every_cursor(hours):
    batches = list(stream(hours, batch_size=37).batches(b""))
    for number, batch in enumerate(batches):
        rest = numbers(stream(hours, batch_size=37).batches(batch.cursor))
        assert numbers(batches[: number + 1]) + rest == list(range(650))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_workers_share_the_blocks_of_each_file(hours, count):
    shares = [numbers(stream(hours, index, count).batches(b"")) for index in range(count)]
    assert sorted(n for share in shares for n in share) == list(range(650))
    assert sum(1 for share in shares if share) == count


def test_files_that_come_later_are_read_once(hours, tmp_path):
    reader = stream(hours, batch_size=1000, idle_s=0.0)
    batches = reader.batches(b"")
    assert numbers([next(batches)]) == list(range(650))
    write(tmp_path / "2026-11-01/05/a.parquet", 650, 700)
    write(tmp_path / "2026-11-01/03/b.parquet", 700, 710)  # of an earlier hour
    assert sorted(numbers([next(batches)])) == list(range(650, 710))

    write(tmp_path / "2026-11-01/06/a.parquet", 710, 720)
    last = next(batches)
    assert numbers([last]) == list(range(710, 720))
    assert numbers(stream(hours).batches(last.cursor)) == []


def test_the_file_of_the_cursor_is_read_on_before_one_that_sorts_earlier(hours, tmp_path):
    batches = stream(hours, batch_size=20).batches(b"")
    begun = [next(batches) for _ in range(9)]  # 180 rows: the last 50 are of the second file
    write(tmp_path / "2026-11-01/00/aa.parquet", 650, 700)

    rest = numbers(stream(hours, batch_size=30).batches(begun[-1].cursor))
    assert rest[:80] == list(range(180, 260))
    assert sorted(numbers(begun) + rest) == list(range(700))


def test_the_file_of_the_cursor_is_read_on_although_its_hour_is_closed(
    hours, tmp_path, monkeypatch
):
    monkeypatch.setattr(read_files, "OPEN_HOURS", 2)
    write(tmp_path / "2026-11-01/00/b.parquet", 650, 700)
    write(tmp_path / "2026-11-01/00/c.parquet", 700, 730)
    first = stream(hours, window=Window.parse("2026-11-01T01", "2026-11-01T02"))
    cursor = list(first.batches(b""))[-1].cursor

    # Hour 0 is closed as soon as one of its files is read.
    batches = []
    for batch in stream(hours, batch_size=140).batches(cursor):
        batches.append(batch)
        break
    rest = numbers(stream(hours).batches(batches[0].cursor))
    assert (numbers(batches) + rest)[:180] == [*range(130), *range(650, 700)]


def part_of_a_file(hours):
    batches = stream(hours, batch_size=20).batches(b"")
    return [next(batches) for _ in range(9)]


def test_a_file_of_the_cursor_that_is_gone_is_an_error(hours, tmp_path):
    begun = part_of_a_file(hours)
    (tmp_path / "2026-11-01/01/a.parquet").unlink()
    with pytest.raises(BadData, match=r"01/a.parquet: the file is gone, and 50 .*on-lost-data"):
        list(stream(hours).batches(begun[-1].cursor))


def test_a_file_of_the_cursor_that_is_gone_is_left_out_and_counted_when_told_to(
    hours, tmp_path, caplog
):
    begun = part_of_a_file(hours)
    (tmp_path / "2026-11-01/01/a.parquet").unlink()
    reader = stream(hours, is_skipping=True)
    assert numbers(reader.batches(begun[-1].cursor)) == list(range(260, 650))
    assert reader.left_out() == InputCounts(late_files=1)
    assert "01/a.parquet: the file is gone" in caplog.text


def test_a_file_that_goes_before_its_turn_is_left_out_and_counted_when_told_to(hours, tmp_path):
    for is_skipping in (True, False):
        reader = stream(hours, batch_size=130, is_skipping=is_skipping)
        batches = reader.batches(b"")
        begun = numbers([next(batches)])
        (tmp_path / "2026-11-01/02/a.parquet").unlink()
        if is_skipping:
            assert begun + numbers(batches) == [*range(260), *range(390, 650)]
            assert reader.left_out() == InputCounts(late_files=1)
            write(tmp_path / "2026-11-01/02/a.parquet", 260, 390)
        else:
            with pytest.raises(BadData, match=r"02/a.parquet: the file is gone.*on-lost-data"):
                list(batches)


def test_a_file_of_the_cursor_that_has_become_shorter_is_an_error(hours, tmp_path):
    begun = part_of_a_file(hours)
    write(tmp_path / "2026-11-01/01/a.parquet", 130, 170)
    with pytest.raises(BadData, match=r"01/a.parquet has 40 rows .* 50 were read before"):
        list(stream(hours).batches(begun[-1].cursor))


def test_a_file_that_was_read_to_its_end_may_go(hours, tmp_path):
    batches = stream(hours, batch_size=130).batches(b"")
    cursor = next(batches).cursor  # it ends with the file
    (tmp_path / "2026-11-01/00/a.parquet").unlink()
    assert numbers(stream(hours).batches(cursor)) == list(range(130, 650))


def test_another_number_of_workers_misses_a_file_that_is_gone(hours, tmp_path):
    cursors = []
    for index in range(2):
        cursors.append(next(stream(hours, index, 2, batch_size=20).batches(b"")).cursor)

    (tmp_path / "2026-11-01/00/a.parquet").unlink()
    with pytest.raises(BadData, match=r"00/a.parquet: the file is gone"):
        stream(hours).resumed(cursors, 0, 1)

    readers = [stream(hours, index, 3, is_skipping=True) for index in range(3)]
    for index, reader in enumerate(readers):
        reader.resumed(cursors, index, 3)
    assert [reader.left_out().late_files for reader in readers] == [1, 0, 0]


def test_a_stream_that_waits_ends_when_it_is_stopped(hours):
    reader = stream(hours, idle_s=0.0)
    found = []
    thread = threading.Thread(target=lambda: found.extend(reader.batches(b"")))
    thread.start()
    reader.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_another_number_of_workers_loses_nothing(hours):
    read = []
    cursors = []
    for index, steps in enumerate([4, 1, 0]):
        batches = stream(hours, index, 3, batch_size=20).batches(b"")
        cursor = b""
        for _ in range(steps):
            batch = next(batches)
            read.append(batch)
            cursor = batch.cursor
        cursors.append(cursor)

    rest = []
    for index in range(2):
        reader = stream(hours, index, 2)
        rest += numbers(reader.batches(reader.resumed(cursors, index, 2)))
    assert set(numbers(read) + rest) == set(range(650))
    assert len(rest) == len(set(rest))


def test_files_that_all_have_read_are_not_read_again(hours):
    cursors = [list(stream(hours, index, 3).batches(b""))[-1].cursor for index in range(3)]
    reader = stream(hours)
    again = numbers(reader.batches(reader.resumed(cursors, 0, 1)))
    assert len(again) < 650  # the last batch of a worker may end before its last file does


def test_a_file_that_all_have_read_is_not_read_again_although_one_has_closed_its_hour(monkeypatch):
    monkeypatch.setattr(read_files, "OPEN_HOURS", 2)
    ahead = ReadFiles()
    behind = ReadFiles()
    for hour in range(4):
        ahead.add(hour, f"{hour}.parquet")
        if hour < 3:
            behind.add(hour, f"{hour}.parquet")

    for saved in ([ahead, behind], [behind, ahead]):
        common = read_files.read_by_all(saved)
        assert [common.has(hour, f"{hour}.parquet") for hour in range(4)] == [True] * 3 + [False]


def test_old_hours_are_closed_and_late_files_counted(hours, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(read_files, "OPEN_HOURS", 2)
    reader = stream(hours, batch_size=1000, idle_s=0.0)
    batches = reader.batches(b"")
    cursor = next(batches).cursor
    assert len(ReadFiles.parse(cursor).files) == 2

    write(tmp_path / "2026-11-01/00/late.parquet", 0, 10)
    write(tmp_path / "2026-11-01/09/a.parquet", 1000, 1010)
    assert numbers([next(batches)]) == list(range(1000, 1010))
    assert reader.left_out() == InputCounts(late_files=1)
    assert "00/late.parquet" in caplog.text
    assert numbers(stream(hours).batches(cursor)) == list(range(1000, 1010))


def test_a_late_file_is_counted_by_one_of_several_workers(hours, tmp_path, monkeypatch):
    monkeypatch.setattr(read_files, "OPEN_HOURS", 2)
    readers = [stream(hours, index, 3, batch_size=1000, idle_s=0.0) for index in range(3)]
    inputs = [reader.batches(b"") for reader in readers]
    for batches in inputs:
        next(batches)
    write(tmp_path / "2026-11-01/00/late.parquet", 0, 10)
    write(tmp_path / "2026-11-01/09/a.parquet", 1000, 1100)
    for batches in inputs:
        next(batches)
    assert sum(reader.left_out().late_files for reader in readers) == 1


def test_the_part_of_a_late_file_is_counted_that_a_worker_leaves_out_while_another_reads_its_own(
    hours, tmp_path, monkeypatch
):
    monkeypatch.setattr(read_files, "OPEN_HOURS", 2)
    for owner in range(2):  # of the first block
        paths = (tmp_path / f"2026-11-01/00/late-{owner}-{n}.parquet" for n in range(100))
        path = next(path for path in paths if int(hash_of(str(path)), 16) % 2 == owner)
        ahead = stream(hours, 0, 2, batch_size=1000, idle_s=0.0)
        first = ahead.batches(b"")
        next(first)

        write(path, 700, 760)  # two blocks
        behind = stream(hours, 1, 2)
        assert len(set(numbers(behind.batches(b""))) & set(range(700, 760))) == 30
        write(tmp_path / f"2026-11-01/09/{owner}.parquet", 1000, 1060)
        next(first)
        assert [reader.left_out().late_files for reader in (ahead, behind)] == [1, 0]
        path.unlink()


def test_a_late_file_without_rows_is_not_counted_and_a_damaged_one_is(hours, tmp_path, monkeypatch):
    monkeypatch.setattr(read_files, "OPEN_HOURS", 2)
    readers = [stream(hours, index, 3, batch_size=1000, idle_s=0.0) for index in range(3)]
    inputs = [reader.batches(b"") for reader in readers]
    for batches in inputs:
        next(batches)

    write(tmp_path / "2026-11-01/00/none.parquet", 0, 0)
    (tmp_path / "2026-11-01/00/damaged.parquet").write_bytes(b"PAR1 half a file")
    write(tmp_path / "2026-11-01/09/a.parquet", 1000, 1100)
    for batches in inputs:
        next(batches)
    assert sum(reader.left_out().late_files for reader in readers) == 1


def test_a_file_that_waits_is_read_after_a_restart_although_its_hour_is_older_than_all(
    hours, tmp_path, monkeypatch
):
    monkeypatch.setattr(read_files, "OPEN_HOURS", 2)
    window = Window.parse("2026-11-01T02", "2026-11-01T03")
    cursor = list(stream(hours, window=window).batches(b""))[-1].cursor
    for number in range(3):
        write(tmp_path / f"2026-11-01/01/{number}.parquet", 650 + 30 * number, 680 + 30 * number)

    for stop in range(1, 14):
        batches = stream(hours, batch_size=37).batches(cursor)
        begun = [batch for batch, _ in zip(batches, range(stop), strict=False)]
        last = begun[-1].cursor
        assert len(ReadFiles.parse(last).files) <= 3
        rest = stream(hours, batch_size=37).batches(last)
        read = [*range(260), *range(520, 740)]
        assert sorted(numbers(begun) + numbers(rest)) == read


def test_a_file_that_comes_too_late_while_the_begun_one_is_read_is_counted(
    hours, tmp_path, monkeypatch
):
    """A job that goes on reads the file first of which it had read a part, and then looks."""
    monkeypatch.setattr(read_files, "OPEN_HOURS", 2)
    batches = stream(hours).batches(b"")
    cursor = [next(batches).cursor for _ in range(11)][-1]
    begun = ReadFiles.parse(cursor)
    assert (begun.path[-12:], begun.rows) == ("04/a.parquet", 30)

    reader = stream(hours, idle_s=0.0)
    batches = reader.batches(cursor)
    assert numbers([next(batches)]) == list(range(550, 600))
    write(tmp_path / "2026-11-01/00/late.parquet", 0, 10)
    write(tmp_path / "2026-11-01/09/a.parquet", 1000, 1050)
    assert numbers([next(batches)]) == list(range(600, 650))
    assert numbers([next(batches)]) == list(range(1000, 1050))
    assert reader.left_out() == InputCounts(late_files=1)


def test_too_many_files_without_a_date_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(read_files, "MOST_FILES", 3)
    for number in range(5):
        write(tmp_path / f"{number}.parquet", number, number + 1)
    with pytest.raises(BadData, match=r"put \{date\} into the pattern"):
        list(stream(tmp_path / "*.parquet").batches(b""))


def test_the_most_files_give_a_cursor_that_a_controller_takes():
    read = ReadFiles()
    for number in range(read_files.MOST_FILES):
        read.add(0, f"folder/file-{number}.parquet")
    assert len(read.encoded()) < _MAX_CURSOR


def test_a_file_with_another_column_is_named(hours, tmp_path):
    pq.write_table(pa.table({"m": [1]}), tmp_path / "2026-11-01/03/wrong.parquet")
    with pytest.raises(BadData, match=r"03/wrong.parquet has no column n; it has m"):
        list(stream(hours).batches(b""))


def test_a_column_of_another_kind_is_named(hours, tmp_path):
    pq.write_table(pa.table({"n": ["text"]}), tmp_path / "2026-11-01/03/wrong.parquet")
    with pytest.raises(BadData, match=r"03/wrong.parquet: column n is string, but int64"):
        list(stream(hours).batches(b""))


@pytest.mark.parametrize("content", [b"", b"PAR1 half a file"])
def test_a_damaged_file_is_named(hours, tmp_path, content):
    (tmp_path / "2026-11-01/03/wrong.parquet").write_bytes(content)
    with pytest.raises(BadData, match=r"03/wrong.parquet"):
        list(stream(hours).batches(b""))


def test_a_file_that_vanishes_while_it_is_read_is_named(hours, tmp_path):
    batches = stream(hours, batch_size=20).batches(b"")
    next(batches)
    (tmp_path / "2026-11-01/00/a.parquet").unlink()
    with pytest.raises(BadData, match=r"00/a.parquet, row group 1: the file is gone"):
        list(batches)


def test_the_rest_of_a_file_that_vanishes_while_it_is_read_is_left_out_and_counted(hours, tmp_path):
    reader = stream(hours, batch_size=20, is_skipping=True)
    batches = reader.batches(b"")
    read = [next(batches), next(batches)]  # of the first two row groups
    (tmp_path / "2026-11-01/00/a.parquet").unlink()
    read += batches
    assert numbers(read) == [*range(60), *range(130, 650)]
    assert reader.left_out() == InputCounts(late_files=1)
    for batch in read[3:]:
        assert not ReadFiles.parse(batch.cursor).path.endswith("00/a.parquet")


def test_a_file_that_grows_while_it_is_read_is_named(hours, tmp_path):
    batches = stream(hours, batch_size=20).batches(b"")
    next(batches)
    write(tmp_path / "2026-11-01/00/a.parquet", 0, 500)
    with pytest.raises(BadData, match=r"00/a.parquet has changed since its rows were counted"):
        list(batches)


def test_a_cursor_of_another_input_is_refused(hours):
    with pytest.raises(InvalidRequest, match="another kind of input"):
        list(stream(hours).batches(b"numbered batches=1 workers=1 batch_size=5"))

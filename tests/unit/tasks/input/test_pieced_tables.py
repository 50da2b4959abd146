"""Row groups and files as pieces: each row once, in full batches, from any offset."""

import os
import threading
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megalith.controller.members.piece_book import PieceBook
from megalith.errors import BadData
from megalith.tasks.input.file_stream import StreamSettings
from megalith.tasks.input.index import DataIndex
from megalith.tasks.input.pieced_tables import PiecedBlocks, PiecedFiles
from megalith.tasks.input.windows import Window
from megalith.wire.pieces import FoundFile, PiecePlan, PieceProgress, PieceRequest
from megalith.wire.reports import InputCounts
from megalith.worker.session.piece_source import ControllerPieces
from support.waiting import wait_until

SCHEMA = pa.schema([("n", pa.int64())])


class FakeController:
    def __init__(self, book=None):
        self.book = book or PieceBook()
        self.gone = set()

    def take_pieces(self, request, timeout_s):
        return self.book.take(request, lambda index, incarnation: incarnation in self.gone)


def write(path, start, stop, group=30):
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.parent / f".{path.name}"
    table = pa.table({"n": pa.array(range(start, stop), pa.int64())})
    pq.write_table(table, hidden, row_group_size=group)
    os.replace(hidden, path)


@pytest.fixture
def data(tmp_path):
    for number in range(5):
        write(tmp_path / f"{number}.parquet", number * 130, (number + 1) * 130)
    return str(tmp_path / "*.parquet")


def blocks(data, controller, worker=0, batch_size=50, **options):
    read = PiecedBlocks(DataIndex.build([data]), SCHEMA, batch_size=batch_size, **options)
    return drawn_by(read, controller, worker)


def files(data, controller, worker=0, idle_s=0.01, batch_size=50, **options):
    settings = StreamSettings([data], Window(), batch_size, idle_s=idle_s, poll_s=0.001, **options)
    return drawn_by(PiecedFiles(settings, SCHEMA), controller, worker)


def drawn_by(read, controller, worker):
    source = ControllerPieces(controller, worker, lambda: f"w{worker}")
    read.draw_from(source)
    return source, read


def numbers(batch):
    return batch.batch.column("n").to_pylist()


def train(source, batches):
    trained = []
    for batch in batches:
        trained.append(numbers(batch))
        source.trained(batch.cursor)
    return trained


def flat(batches):
    return [n for batch in batches for n in batch]


@pytest.mark.parametrize("kind", [blocks, files])
def test_each_row_comes_once_and_batches_are_full(data, kind):
    batches = train(*_opened(kind(data, FakeController())))
    assert flat(batches) == list(range(650))
    assert [len(batch) for batch in batches] == [50] * 13


def _opened(pair):
    source, read = pair
    return source, read.batches(b"")


def test_epochs_have_the_same_rows_in_other_orders(data):
    batches = train(*_opened(blocks(data, FakeController(), epochs=2, shuffle_seed=3)))
    rows = flat(batches)
    assert sorted(rows[:650]) == sorted(rows[650:]) == list(range(650))
    assert rows[:650] != rows[650:]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("kind", [blocks, files])
def test_another_worker_goes_on_where_the_last_report_was(data, kind, seed):
    options = {} if kind is files or seed is None else {"shuffle_seed": seed}
    for stop in range(0, 14, 3):
        controller = FakeController()
        source, read = kind(data, controller, **options)
        batches = read.batches(b"")
        first = train(source, (next(batches) for _ in range(stop)))
        controller.book.report("w0", source.progress())
        controller.gone.add("w0")

        second = train(*_opened(kind(data, controller, 1, **options)))
        assert sorted(flat(first) + flat(second)) == list(range(650))


def test_a_checkpoint_goes_on_at_every_batch_with_another_batch_size(data):
    for stop in range(13):
        controller = FakeController()
        source, read = blocks(data, controller, shuffle_seed=1)
        batches = read.batches(b"")
        first = train(source, (next(batches) for _ in range(stop)))
        controller.book.report("w0", source.progress())

        again = PieceBook.parse(controller.book.encoded(with_holders=False))
        _, read = pair = blocks(data, FakeController(again), 0, batch_size=77, shuffle_seed=1)
        second = train(*_opened(pair))
        assert sorted(flat(first) + flat(second)) == list(range(650))


def test_rows_that_are_read_and_not_drawn_come_again_after_an_error(data, tmp_path):
    source, read = blocks(data, FakeController(), batch_size=100)
    hidden = tmp_path / "away"
    os.rename(tmp_path / "1.parquet", hidden)
    batches = read.batches(b"")
    first = train(source, [next(batches)])
    with pytest.raises(BadData, match=r"1\.parquet, row group 0: the file is gone"):
        next(batches)
    os.rename(hidden, tmp_path / "1.parquet")
    assert flat(first + train(source, read.batches(b""))) == list(range(650))


def test_new_files_are_new_pieces_and_empty_ones_are_done(data, tmp_path):
    controller = FakeController()
    source, read = files(data, controller, idle_s=0.3)
    batches = read.batches(b"")
    first = train(source, (next(batches) for _ in range(13)))
    write(tmp_path / "8.parquet", 650, 650)
    write(tmp_path / "9.parquet", 650, 700)
    assert flat(first + train(source, batches)) == list(range(700))
    counts = controller.book.counts()
    assert (counts.total, counts.done) == (7, 7)


def test_a_column_that_has_its_first_values_in_a_later_file_has_one_kind_from_then_on(tmp_path):
    columns = {"a": pa.nulls(2), "b": ["5", "6"], "c": pa.nulls(2), "d": [5, 6]}
    for name, values in columns.items():
        pq.write_table(pa.table({"n": values}), tmp_path / f"{name}.parquet")

    settings = StreamSettings([f"{tmp_path}/*.parquet"], Window(), 2, idle_s=0.01, poll_s=0.001)
    read = PiecedFiles(settings, pa.schema([("n", pa.null())]))
    source, read = drawn_by(read, FakeController(), 0)
    batches = read.batches(b"")
    said = r"d\.parquet: column n is int64, but string in"
    with pytest.raises(BadData, match=said):
        train(source, batches)


def test_a_file_that_has_become_shorter_is_named(data, tmp_path):
    controller = FakeController()
    source, read = files(data, controller)
    batches = read.batches(b"")
    train(source, (next(batches) for _ in range(2)))
    controller.book.report("w0", source.progress())
    controller.gone.add("w0")
    write(tmp_path / "0.parquet", 0, 40)
    _, other = files(data, controller, 1)
    with pytest.raises(BadData, match=r"0\.parquet has 40 rows, but 100 were read"):
        next(other.batches(b""))


def test_a_file_that_is_gone_is_an_error_or_counted(data, tmp_path):
    controller = FakeController()
    source, read = files(data, controller)
    train(source, (batch for batch, _ in zip(read.batches(b""), range(2), strict=False)))
    controller.book.report("w0", source.progress())
    controller.gone.add("w0")
    (tmp_path / "0.parquet").unlink()

    _, other = files(data, controller, 1)
    with pytest.raises(BadData, match=r"0\.parquet: the file is gone.*--on-lost-data skip"):
        next(other.batches(b""))

    controller.gone.add("w1")
    source, other = files(data, controller, 2, is_skipping=True)
    assert flat(train(source, other.batches(b""))) == list(range(130, 650))
    assert other.left_out() == InputCounts(late_files=1)
    assert controller.book.counts().done == 5


@pytest.mark.parametrize("batch_size", [20, 25])
def test_the_rest_of_a_file_that_vanishes_while_it_is_read_is_left_out_and_counted(
    data, tmp_path, batch_size
):
    """Row groups have 30 rows. Batches are trained some time after they are drawn."""
    controller = FakeController()
    source, read = files(data, controller, batch_size=batch_size, is_skipping=True)
    batches = read.batches(b"")
    first = [next(batches), next(batches)]  # of the first two row groups
    (tmp_path / "0.parquet").unlink()
    first += [next(batches), next(batches)]
    rows = flat(train(source, first) + train(source, batches))
    assert rows == [*range(60), *range(130, 650)]
    assert read.left_out() == InputCounts(late_files=1)
    counts = controller.book.counts()
    assert (counts.done, counts.held) == (5, 0)


def test_files_of_closed_hours_are_left_out_and_counted(tmp_path):
    for hour in range(24):
        for day in (1, 2, 3):
            write(tmp_path / f"2026-11-{day:02d}" / f"{hour:02d}.parquet", 0, 1)
    pattern = str(tmp_path / "{date}" / "{hour}.parquet")
    controller = FakeController()
    source, read = files(pattern, controller, idle_s=0.3)
    batches = read.batches(b"")
    train(source, [next(batches), next(batches)])
    write(tmp_path / "2026-10-01" / "05.parquet", 0, 1)
    train(source, batches)
    assert read.num_late == 1
    assert controller.book.counts().done == 72


def hourly(tmp_path, days=(1, 2, 3)):
    for hour in range(24):
        for day in days:
            write(tmp_path / f"2026-11-{day:02d}" / f"{hour:02d}.parquet", 0, 1)
    return str(tmp_path / "{date}" / "{hour}.parquet")


class CountingController(FakeController):
    """Knows how often each worker has asked; for several threads."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.questions = Counter()

    def take_pieces(self, request, timeout_s):
        with self.lock:
            self.questions[request.index] += 1
            return super().take_pieces(request, timeout_s)


def test_a_late_file_is_counted_by_one_of_several_workers(tmp_path):
    pattern = hourly(tmp_path)
    controller = CountingController()
    opened = [files(pattern, controller, worker, idle_s=0.0) for worker in range(3)]
    threads = [
        threading.Thread(target=train, args=(source, read.batches(b""))) for source, read in opened
    ]
    for thread in threads:
        thread.start()

    def have_all_asked(times):
        before = controller.questions.copy()
        return lambda: all(controller.questions[n] >= before[n] + times for n in range(3))

    wait_until(lambda: controller.book.counts().done == 72)
    wait_until(have_all_asked(4))
    write(tmp_path / "2026-10-01" / "05.parquet", 0, 1)
    wait_until(have_all_asked(8))
    for _, read in opened:
        read.stop()
    for thread in threads:
        thread.join()

    assert sorted(read.num_late for _, read in opened) == [0, 0, 1]


class Meanwhile(FakeController):
    """Worker 9 tells of files while a question of another is on its way."""

    def __init__(self, on_question):
        super().__init__()
        self.on_question = on_question

    def take_pieces(self, request, timeout_s):
        self.on_question(request)
        return super().take_pieces(request, timeout_s)

    def tell(self, paths_by_hour):
        """As worker 9, which trains what it gets at once."""
        found = tuple(FoundFile(path, hour) for hour, path in paths_by_hour.items())
        plan = PiecePlan("files, followed", is_followed=True)
        request = PieceRequest(9, "w9", plan, most=len(found), found=found)
        answer = self.book.take(request, lambda index, incarnation: False)
        done = [PieceProgress(piece.number, 1, is_done=True) for piece in answer.pieces]
        self.book.report("w9", done)


def test_a_file_whose_hour_closes_while_it_is_told_of_is_counted(tmp_path):
    pattern = hourly(tmp_path, days=(1,))
    late = tmp_path / "2026-11-01" / "05.parquet"
    late.unlink()

    def on_question(request):
        if not late.exists() and controller.book.counts().done == 23:
            write(late, 0, 1)
        elif [file.path for file in request.found] == [str(late)]:
            hour = request.found[0].hour
            controller.tell({hour + 100 + n: f"newer-{n}" for n in range(48)})
        elif late.exists():
            read.stop()

    controller = Meanwhile(on_question)
    source, read = files(pattern, controller, idle_s=0.0)
    assert len(flat(train(source, read.batches(b"")))) == 23
    assert controller.book.counts().total == 23 + 48
    assert read.left_out() == InputCounts(late_files=1)


def test_no_worker_ends_the_input_while_others_find_files(tmp_path):
    """A file every six seconds, each of which another worker gets, and an end after ten."""
    now_s = 0.0
    left = [f"{number}.parquet" for number in range(5)]

    def on_question(request):
        nonlocal now_s
        if left:
            now_s += 6.0
            controller.tell({0: left.pop(0)})
        else:
            now_s += 1.0

    controller = Meanwhile(on_question)
    settings = StreamSettings([f"{tmp_path}/*.parquet"], Window(), 50, idle_s=10.0, poll_s=0.001)
    source, read = drawn_by(PiecedFiles(settings, SCHEMA, clock=lambda: now_s), controller, 0)
    assert train(source, read.batches(b"")) == []
    assert controller.book.counts().done == 5
    assert 40.0 <= now_s <= 45.0


def test_rows_of_all_pieces_that_were_lost_are_dropped(tmp_path):
    """Blocks of 30 rows, batches of 50: rows of a block are gathered while the next one is read."""
    write(tmp_path / "0.parquet", 0, 300)
    pattern = str(tmp_path / "*.parquet")
    controller = FakeController()
    source, read = blocks(pattern, controller)
    read._most = 4
    tables = read._tables
    by_other = []

    def cut_off_before_the_third(piece):
        if piece.number == 2 and not by_other:
            controller.book.report("w0", source.progress())
            controller.gone.add("w0")
            other, other_read = blocks(pattern, controller, worker=1)
            by_other.extend(flat(train(other, other_read.batches(b""))))
            controller.gone.clear()
            source.rejoined()
        yield from tables(piece)

    read._tables = cut_off_before_the_third
    mine = flat(train(source, read.batches(b"")))
    assert sorted(mine + by_other) == list(range(300))

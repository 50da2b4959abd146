"""A worker reads the pieces that it is given, and says how far each is trained."""

import threading

import pytest

from megalith.controller.members.piece_book import PieceBook
from megalith.errors import InvalidRequest, InvalidSetting, NotReady
from megalith.wire.pieces import ENDLESS, PieceProgress, PieceRequest
from megalith.worker.input import Mode
from megalith.worker.pieced_input import NumberedPieces, cursor_of, progress_of
from megalith.worker.session.piece_source import ControllerPieces
from megalith.worker.task import DYNAMIC, open_input


class FakeController:
    """A book that is asked directly; some answers are lost on the way."""

    def __init__(self):
        self.book = PieceBook()
        self.gone = set()
        self.losses = 0
        self.asked = 0

    def take_pieces(self, request, timeout_s):
        self.asked += 1
        answer = self.book.take(request, lambda index, incarnation: incarnation in self.gone)
        if self.losses:
            self.losses -= 1
            raise NotReady("the answer is lost")
        return answer


def worker(controller, index, num_batches=40):
    source = ControllerPieces(controller, index, lambda: f"w{index}")
    read = NumberedPieces(lambda number: number, num_batches, "batch_size=1")
    read.draw_from(source)
    return source, read


def train(source, batches):
    trained = []
    for batch in batches:
        trained.append(batch.batch)
        source.trained(batch.cursor)
    return trained


def test_one_worker_reads_all_batches_in_order_and_ends():
    controller = FakeController()
    source, read = worker(controller, 0)
    assert train(source, read.batches(b"")) == list(range(40))
    assert controller.book.is_complete
    assert source.progress() == ()


def test_a_lost_answer_loses_no_piece():
    controller = FakeController()
    controller.losses = 2
    source, read = worker(controller, 0)
    assert train(source, read.batches(b"")) == list(range(40))


def test_workers_share_all_batches_and_end_together():
    controller = FakeController()
    lock = threading.Lock()
    take = controller.take_pieces

    def take_alone(request, timeout_s):
        with lock:
            return take(request, timeout_s)

    controller.take_pieces = take_alone
    trained = [[], [], []]

    def run(index):
        source, read = worker(controller, index, 1000)
        trained[index] = train(source, read.batches(b""))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(number for part in trained for number in part) == list(range(1000))


def test_a_batch_that_is_drawn_and_not_trained_is_not_done():
    controller = FakeController()
    source, read = worker(controller, 0)
    batches = read.batches(b"")
    first = next(batches)
    next(batches)
    source.trained(first.cursor)
    assert PieceProgress(0, 1, is_done=True) in source.progress()
    assert PieceProgress(1) in source.progress()
    controller.gone.add("w0")
    other_source, other = worker(controller, 1)
    assert train(other_source, other.batches(b""))[:2] == [0, 1], "it was never reported"


def test_after_an_error_it_goes_on_after_the_last_batch():
    controller = FakeController()
    failures = [3]

    def batch(number):
        if number in failures:
            failures.remove(number)
            raise InvalidRequest("once")
        return number

    source = ControllerPieces(controller, 0, lambda: "w0")
    read = NumberedPieces(batch, 6, "batch_size=1")
    read.draw_from(source)
    batches = read.batches(b"")
    drawn = train(source, (next(batches) for _ in range(3)))
    with pytest.raises(InvalidRequest, match="once"):
        next(batches)
    rest = train(source, read.batches(b"whatever"))
    assert drawn + rest == list(range(6))


def test_a_worker_that_was_away_leaves_the_pieces_that_others_have_got():
    controller = FakeController()
    source, read = worker(controller, 0, 20)
    batches = read.batches(b"")
    first = next(batches)
    source.trained(first.cursor)

    controller.gone.add("w0")
    other_source, other = worker(controller, 1, 20)
    other_batches = other.batches(b"")
    taken = [next(other_batches) for _ in range(16)]
    controller.gone.clear()
    source.rejoined()
    assert source.is_unsure

    mine = train(source, [next(batches) for _ in range(4)])
    assert mine == [16, 17, 18, 19]
    assert sorted(batch.batch for batch in taken) == list(range(16))
    for batch in taken:
        other_source.trained(batch.cursor)
    controller.book.report("w0", source.progress())
    assert train(other_source, other_batches) == []
    assert controller.book.is_complete


def test_a_worker_that_waits_stops_when_told():
    controller = FakeController()
    _, first = worker(controller, 0, 1)
    next(first.batches(b""))
    source, waiting = worker(controller, 1, 1)
    done = threading.Event()

    def run():
        assert train(source, waiting.batches(b"")) == []
        done.set()

    threading.Thread(target=run, daemon=True).start()
    waiting.stop()
    assert done.wait(10)


def test_an_input_without_an_end_has_pieces_without_end():
    controller = FakeController()
    _, read = worker(controller, 0, 0)
    batches = read.batches(b"")
    assert [next(batches).batch for _ in range(50)] == list(range(50))
    assert read._plan.total == ENDLESS


def test_a_cursor_keeps_how_far_pieces_are():
    progress = [PieceProgress(7, 100), PieceProgress(8, 5, is_done=True)]
    assert progress_of(cursor_of(progress)) == progress


def test_numbered_tasks_can_be_handed_out_and_others_say_what_they_lack():
    class Numbered:
        def num_batches(self):
            return 3

        def batch(self, number):
            return number

    class Own:
        def input(self, mode, index, count):
            raise AssertionError

    read = open_input(Numbered(), Mode.TRAIN, 0, 2, batch_size=8, sharding=DYNAMIC)
    assert isinstance(read, NumberedPieces)
    with pytest.raises(InvalidSetting, match=r"pieced_input\(mode\)"):
        open_input(Own(), Mode.TRAIN, 0, 2, sharding=DYNAMIC)
    with pytest.raises(InvalidRequest, match="--sharding static"):
        next(read.batches(b""))


def test_pieces_given_to_a_late_question_are_read():
    controller = FakeController()
    source, read = worker(controller, 0)
    batches = read.batches(b"")
    first = next(batches)
    source.trained(first.cursor)
    # A question of this worker that was late on its way: nobody hears of what it is given.
    all_done = tuple(PieceProgress(number, 1, True) for number in range(16))
    controller.book.report("w0", all_done)
    late = PieceRequest(0, "w0", read._plan, (), 4)
    controller.take_pieces(late, 1.0)
    source.rejoined()
    rest = train(source, batches)
    assert controller.book.is_complete
    assert set(range(16, 40)) <= set(rest)

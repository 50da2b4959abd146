"""Pieces of the input: none is lost, none is given twice, whatever is lost on the way."""

import random

import pytest

from megalith.controller.members import found_files
from megalith.controller.members.found_files import FoundFiles, LateFiles
from megalith.controller.members.piece_book import MOST_HELD, PieceBook
from megalith.errors import BadData, InvalidRequest
from megalith.wire.pieces import ENDLESS, FoundFile, Piece, PiecePlan, PieceProgress, PieceRequest

PLAN = PiecePlan("blocks", 10)
FOLLOWED = PiecePlan("files", is_followed=True)


def nobody_is_gone(index, incarnation):
    return False


def ask(book, worker=0, most=2, progress=(), plan=PLAN, gone=(), **changes):
    request = PieceRequest(worker, f"w{worker}", plan, tuple(progress), most, **changes)
    return book.take(request, lambda index, incarnation: incarnation in gone)


def held(*numbers):
    return [PieceProgress(number) for number in numbers]


def done(*numbers):
    return [PieceProgress(number, 1, is_done=True) for number in numbers]


def numbers(answer):
    return [piece.number for piece in answer.pieces]


def test_each_piece_is_handed_out_once_and_in_order():
    book = PieceBook()
    assert numbers(ask(book, 0, 3)) == [0, 1, 2]
    assert numbers(ask(book, 1, 3)) == [3, 4, 5]
    assert numbers(ask(book, 0, 9, held(0, 1, 2))) == [6, 7, 8, 9]
    assert numbers(ask(book, 1, 3, held(3, 4, 5))) == []
    assert book.counts().held == 10


def test_a_worker_whose_answer_was_lost_gets_the_same_pieces_again():
    book = PieceBook()
    lost = ask(book, 0, 3)
    again = ask(book, 0, 5)
    assert again.pieces == lost.pieces
    assert again.held == frozenset({0, 1, 2})
    assert numbers(ask(book, 1, 1)) == [3]


def test_a_repeated_request_changes_nothing():
    book = PieceBook()
    ask(book, 0, 2)
    first = ask(book, 0, 1, [*done(0), *held(1)])
    version = book.version
    second = ask(book, 0, 1, [*done(0), *held(1)])
    assert (first, version) == (second, book.version)


def test_a_piece_of_a_lost_worker_goes_to_another_where_its_last_report_was():
    book = PieceBook()
    ask(book, 0, 2)
    book.report("w0", [PieceProgress(0, 700), PieceProgress(1, 0)])
    assert numbers(ask(book, 1, 1)) == [2]
    answer = ask(book, 1, 3, held(2), gone={"w0"})
    assert answer.pieces == (Piece(0, 700), Piece(1, 0), Piece(3))
    assert book.counts().returned == 2


def test_a_worker_that_comes_back_is_told_which_pieces_are_not_its_own():
    book = PieceBook()
    ask(book, 0, 2)
    ask(book, 1, 1, gone={"w0"})
    answer = ask(book, 0, 0, held(0, 1))
    assert answer.held == frozenset()
    book.report("w0", done(0))
    assert book.counts().done == 0, "what it says of another's piece counts for nothing"


def test_offsets_never_go_back():
    book = PieceBook()
    ask(book, 0, 1)
    book.report("w0", [PieceProgress(0, 900)])
    book.report("w0", [PieceProgress(0, 300)])
    assert ask(book, 1, 1, gone={"w0"}).pieces == (Piece(0, 900),)


def test_it_ends_when_all_pieces_are_done_and_not_before():
    book = PieceBook()
    assert not ask(book, 0, 10).is_end
    assert not ask(book, 1, 10).is_end
    assert not book.is_complete
    assert ask(book, 0, 1, done(*range(10))).is_end
    assert ask(book, 1, 1).is_end
    assert book.untrained() == []


def test_what_is_left_out_is_said():
    book = PieceBook()
    ask(book, 0, 4)
    book.report("w0", done(0, 1))
    assert book.untrained() == ["8 of 10 pieces of the input were not trained to their end"]


def test_workers_of_one_run_have_one_plan():
    book = PieceBook()
    ask(book)
    with pytest.raises(InvalidRequest, match="different inputs"):
        ask(book, 1, plan=PiecePlan("blocks", 11))


def test_a_checkpoint_has_what_is_done_and_how_far_the_rest_is():
    book = PieceBook()
    ask(book, 0, 3)
    book.report("w0", [*done(1), PieceProgress(2, 40)])
    text = book.encoded(with_holders=False)
    assert b"w0" not in text, "who knows an incarnation can take its seat"

    again = PieceBook.parse(text)
    assert ask(again, 5, 10).pieces == (Piece(0), Piece(2, 40), *(Piece(n) for n in range(3, 10)))


def test_a_checkpoint_goes_on_with_more_epochs():
    book = PieceBook()
    ask(book, 0, 10)
    ask(book, 0, 0, done(*range(10)))
    again = PieceBook.parse(book.encoded(with_holders=False))
    assert numbers(ask(again, 0, 3, plan=PiecePlan("blocks", 20))) == [10, 11, 12]


def test_a_checkpoint_of_other_data_is_read_from_its_start():
    book = PieceBook()
    ask(book, 0, 4)
    again = PieceBook.parse(book.encoded(with_holders=False))
    assert numbers(ask(again, 0, 2, plan=PiecePlan("other", 5))) == [0, 1]
    assert again.counts().total == 5


def test_the_next_controller_knows_who_holds_what():
    book = PieceBook()
    ask(book, 0, 2)
    ask(book, 1, 2)
    again = PieceBook.parse(book.encoded(with_holders=True))
    again.go_on()
    assert again.is_in_use
    assert ask(again, 0, 1, held(0, 1)).held == frozenset({0, 1, 4})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"pieces": 9}',
        PieceBook().encoded(with_holders=True).replace(b'"next": 0', b'"next": -1'),
        PieceBook().encoded(with_holders=True).replace(b'"open": []', b'"open": [[3, 0, 0, ""]]'),
    ],
)
def test_a_text_that_is_no_book_is_refused(text):
    with pytest.raises(ValueError, match="no book of pieces"):
        PieceBook.parse(text)


def test_one_worker_does_not_hold_all():
    book = PieceBook()
    plan = PiecePlan("blocks", 3 * MOST_HELD)
    given = numbers(ask(book, 0, 2 * MOST_HELD, plan=plan))
    assert len(given) == MOST_HELD
    assert numbers(ask(book, 0, 1, held(*given), plan=plan)) == []


def test_an_endless_input_has_no_total():
    book = PieceBook()
    ask(book, 0, 2, plan=PiecePlan("numbered", ENDLESS))
    counts = book.counts()
    assert (counts.total, counts.held, counts.left) == (0, 2, 0)
    assert book.untrained() == []


def test_files_that_several_workers_find_are_one_piece_each():
    book = PieceBook()
    found = (FoundFile("a", 1), FoundFile("b", 2))
    first = ask(book, 0, 1, plan=FOLLOWED, found=found)
    second = ask(book, 1, 5, plan=FOLLOWED, found=found)
    assert [piece.name for piece in (*first.pieces, *second.pieces)] == ["a", "b"]
    assert book.counts().total == 2


def test_an_input_that_is_followed_ends_when_somebody_has_waited_long_enough():
    book = PieceBook()
    ask(book, 0, 1, plan=FOLLOWED, found=(FoundFile("a", 1),))
    assert not ask(book, 1, 1, plan=FOLLOWED, is_idle=True).is_end, "a worker reads"
    assert not ask(book, 0, 1, done(0), plan=FOLLOWED).is_end, "there may come more"
    assert ask(book, 1, 1, plan=FOLLOWED, is_idle=True).is_end
    late = ask(book, 0, 1, plan=FOLLOWED, found=(FoundFile("b", 1),))
    assert late.is_end
    assert late.pieces == ()

    again = PieceBook.parse(book.encoded(with_holders=False))
    found = (FoundFile("a", 1), FoundFile("b", 1))
    assert [piece.name for piece in ask(again, 0, 5, plan=FOLLOWED, found=found).pieces] == ["b"]


def test_names_of_open_and_waiting_files_are_kept():
    book = PieceBook()
    ask(book, 0, 1, plan=FOLLOWED, found=tuple(FoundFile(name, 1) for name in "abc"))
    book.report("w0", [PieceProgress(0, 17)])
    again = PieceBook.parse(book.encoded(with_holders=False))
    answer = ask(again, 0, 5, plan=FOLLOWED)
    assert answer.pieces == (Piece(0, 17, "a"), Piece(1, 0, "b"), Piece(2, 0, "c"))


def test_files_are_known_in_bounded_memory():
    files = FoundFiles()
    for hour in range(1, 60):
        assert files.add(FoundFile(f"{hour}.parquet", hour))
    assert files.closed == 11
    assert len(files.hashes_by_hour) == 48
    assert not files.add(FoundFile("late", 11))
    assert not files.add(FoundFile("59.parquet", 59))

    many = FoundFiles({0: {str(number) for number in range(20_000)}})
    with pytest.raises(BadData, match=r"\{date\}"):
        many.add(FoundFile("one too many", 0))


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_lost_on_the_way_no_piece_is_lost_or_given_to_two_at_once(seed):
    """Lost answers, lost workers, new controllers and restarts of the whole job, at random."""
    rng = random.Random(seed)
    plan = PiecePlan("blocks", 3000)
    book = PieceBook()
    rows = 10
    trained = [0] * plan.total
    workers = {}  # by name: {number: offset}, as the worker knows it
    gone = set()
    names = iter(range(10**6))
    repeated_at_most = 0

    def begin():
        workers[f"w{next(names)}"] = {}

    for _ in range(4):
        begin()

    for _ in range(200_000):
        name = rng.choice(sorted(workers))
        known = workers[name]
        fault = rng.random()
        if fault < 0.002:  # it dies; what it trained and did not report is trained again
            repeated_at_most += rows * len(known)
            gone.add(name)
            del workers[name]
            begin()
            continue
        if fault < 0.003:  # another controller, with the journal
            book = PieceBook.parse(book.encoded(with_holders=True))
            book.go_on()
        progress = [PieceProgress(n, offset, offset == rows) for n, offset in known.items()]
        if fault < 0.5:
            for number, offset in known.items():
                step = min(rng.randrange(4), rows - offset)
                known[number] = offset + step
                trained[number] += step
            continue

        request = PieceRequest(int(name[1:]), name, plan, tuple(progress), rng.randrange(4))
        answer = book.take(request, lambda index, incarnation: incarnation in gone)
        if rng.random() < 0.2:
            continue  # the answer is lost
        for each in progress:
            if each.is_done or each.number not in answer.held:
                del known[each.number]
        for piece in answer.pieces:
            known[piece.number] = piece.offset
        holders = [number for held in workers.values() for number in held]
        assert len(holders) == len(set(holders))
        if answer.is_end:
            break

    assert book.is_complete
    assert min(trained) >= rows
    assert sum(trained) - rows * plan.total <= repeated_at_most


def hours(first, count):
    return tuple(FoundFile(f"{hour}.parquet", hour) for hour in range(first, first + count))


def test_a_late_file_is_told_to_the_worker_that_names_it_first():
    book = PieceBook()
    ask(book, plan=FOLLOWED, found=hours(0, 60))
    late = (FoundFile("late.parquet", 5),)
    first = ask(book, 1, plan=FOLLOWED, found=late)
    again = ask(book, 1, plan=FOLLOWED, found=late)  # as if the answer was lost
    another = ask(book, 2, plan=FOLLOWED, found=late)
    assert first.late_files == again.late_files == ("late.parquet",)
    assert another.late_files == ()
    assert first.known_files == 60

    next_controller = PieceBook.parse(book.encoded(with_holders=True))
    assert ask(next_controller, 2, plan=FOLLOWED, found=late).late_files == ()
    next_job = PieceBook.parse(book.encoded(with_holders=False))
    assert ask(next_job, 2, plan=FOLLOWED, found=late).late_files == ("late.parquet",)


def test_files_that_another_worker_has_told_of_are_not_late():
    """Two workers look at once, and the hours close by what the first one tells."""
    book = PieceBook()
    ask(book, plan=FOLLOWED, found=hours(0, 60))
    answer = ask(book, 1, plan=FOLLOWED, found=hours(0, 60))
    assert answer.closed_hour == 11
    assert answer.late_files == ()
    assert answer.known_files == 60


def test_late_files_and_closed_hours_are_remembered_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(found_files, "_MOST_CLOSED", 5)
    monkeypatch.setattr(found_files, "_MOST_LATE", 3)
    files = FoundFiles()
    for file in hours(0, 60):
        files.add(file)
    assert sorted(files.closed_lately) == [7, 8, 9, 10, 11]
    assert [files.is_late(file) for file in hours(5, 5)] == [True, True, False, False, False]

    late = LateFiles()
    for file in hours(0, 9):
        assert late.is_counted_by("w0", file)
    assert len(late.tellers) == 3
    assert not late.is_counted_by("w1", FoundFile("8.parquet", 8))

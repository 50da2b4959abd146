"""What a controller must know to go on for one that died: the values, and what they may be."""

import base64
import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any

from megalith.controller.members.barrier import BarrierState
from megalith.controller.members.losses import Held, Loss
from megalith.controller.members.piece_book import PieceBook
from megalith.controller.members.roster import Seat
from megalith.wire.reports import LeftOut, PsReport, WorkerReport

# Steps, epochs and positions stay below it. No run gets there, and JSON keeps such numbers exact.
MAX_COUNT = 2**53


@dataclass(frozen=True, slots=True)
class JournaledMember:
    """Who holds a seat, how far a worker is, and what a ps holds and has saved."""

    address: str = ""
    incarnation: str = ""
    position: int = 0
    total_batches: int = 0
    cursor: str = ""  # base64
    pushes_unknown: int = 0
    examples: int = 0  # of a worker, and of those who had its seat before
    examples_before: int = 0
    left_out: LeftOut = dataclasses.field(default_factory=LeftOut)  # as with examples
    left_out_before: LeftOut = dataclasses.field(default_factory=LeftOut)
    rows: int = 0
    pushes: int = 0
    pushes_saved: int = 0
    tables: int = 0
    variables: int = 0
    gone: Held | None = None  # of the ps before it, until this one says what it has restored
    has_predecessor: bool = False  # whose lease may not be over


@dataclass(frozen=True, slots=True)
class Ending:
    """How the job is to end once its last save is made."""

    succeeded: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job ended, and when in Unix time."""

    succeeded: bool
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Journal:
    """One moment of a controller. `ps` and `workers` are by index.

    `routed` are the ps incarnations of the map.
    """

    job: str
    epoch: int
    initialized_epoch: int
    global_step: int
    first_step: int
    barrier: BarrierState
    routed: tuple[str, ...]
    ps: tuple[JournaledMember, ...]
    workers: tuple[JournaledMember, ...]
    first_cursors: tuple[str, ...] = ()  # base64; where the input of this run began
    pieces: str = ""  # the book of an input that is handed out; empty = it is not
    run_id: str = ""  # empty in the journal of a version that had none
    rows_lost: int = 0
    pushes_unknown: int = 0
    losses: tuple[Loss, ...] = ()
    run_gone: Held | None = None  # of the run before, until all ps of this one are ready
    ending: Ending | None = None
    lacks_rows: bool = False  # what is saved of the servers is a part of a model
    was_mapped: bool = False  # this run has had a map; `epoch` may come from a run before it
    outcome: Outcome | None = None  # of a job whose controller died before everybody knew
    ended_runs: tuple[str, ...] = ()  # that this controller was left with and did not go on with

    @property
    def incarnations(self) -> frozenset[str]:
        return frozenset(
            member.incarnation for member in (*self.ps, *self.workers) if member.incarnation
        )

    def check(self) -> None:
        """ValueError if a field is of another type, or a number that no run has.

        A controller that took it up would fail later, or pass it on to everybody.
        """
        _check_fields("journal", self)

        for text in self.first_cursors:
            cursor_of_text(text)

        for worker in self.workers:
            cursor_of_text(worker.cursor)

        if self.pieces:
            PieceBook.parse(self.pieces.encode())


def _check_fields(name: str, value: Any) -> None:
    """Check each field of a dataclass against the type that it is declared with."""
    declared = typing.get_type_hints(type(value))
    for field in dataclasses.fields(value):
        of_field = getattr(value, field.name)
        type_of_field = declared[field.name]

        _check_value(f"{name}.{field.name}", of_field, type_of_field)


def _check_value(name: str, value: Any, declared: Any) -> None:
    options = typing.get_args(declared)

    if isinstance(declared, types.UnionType):
        present = options[0]  # every union here is "... | None"
        if value is not None:
            _check_value(name, value, present)

    elif typing.get_origin(declared) is tuple:
        element = options[0]
        for index, item in enumerate(value):
            _check_value(f"{name}[{index}]", item, element)

    elif dataclasses.is_dataclass(declared):
        _check_fields(name, value)

    elif declared is int:
        is_count = type(value) is int and 0 <= value < MAX_COUNT
        if not is_count:
            largest = MAX_COUNT - 1
            raise ValueError(f"{name} is {value!r}, outside 0..{largest}")

    elif declared is float:
        is_number = type(value) in (int, float) and math.isfinite(value)
        if not is_number:
            raise ValueError(f"{name} is {value!r}, not a finite number")

    elif not isinstance(value, declared):
        kind = declared.__name__
        raise ValueError(f"{name} is {value!r}, not of type {kind}")


def text_of_cursor(cursor: bytes) -> str:
    return base64.b64encode(cursor).decode()


def cursor_of_text(text: str) -> bytes:
    """ValueError for a text that is no cursor's."""
    return base64.b64decode(text, validate=True)


def journal_ps(seat: Seat, has_predecessor: bool) -> JournaledMember:
    return JournaledMember(
        seat.address,
        seat.incarnation,
        rows=seat.load.rows,
        pushes=seat.load.pushes,
        pushes_saved=seat.pushes_saved,
        tables=seat.load.tables,
        variables=seat.load.variables,
        has_predecessor=has_predecessor,
    )


def journal_worker(seat: Seat, has_predecessor: bool) -> JournaledMember:
    return JournaledMember(
        seat.address,
        seat.incarnation,
        position=seat.progress.position,
        total_batches=seat.progress.total_batches,
        cursor=text_of_cursor(seat.progress.cursor),
        pushes_unknown=seat.progress.pushes_unknown,
        examples=seat.progress.examples,
        examples_before=seat.examples_before,
        left_out=LeftOut.of(seat.progress),
        left_out_before=seat.left_out_before,
        has_predecessor=has_predecessor,
    )


def restore_seat(seat: Seat, member: JournaledMember, is_ready: bool) -> None:
    """Give the seat back to whoever held it under the last controller."""
    seat.address = member.address
    seat.incarnation = member.incarnation
    seat.has_lease = True  # until it is back it acts as if there were no controller
    seat.pushes_saved = member.pushes_saved
    seat.examples_before = member.examples_before
    seat.left_out_before = member.left_out_before
    seat.load = PsReport(
        is_ready=is_ready,
        rows=member.rows,
        pushes=member.pushes,
        tables=member.tables,
        variables=member.variables,
    )

    seat.progress = WorkerReport(
        position=member.position,
        total_batches=member.total_batches,
        cursor=cursor_of_text(member.cursor),
        pushes_unknown=member.pushes_unknown,
        examples=member.examples,
        **dataclasses.asdict(member.left_out),
    )

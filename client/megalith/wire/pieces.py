"""Pieces of the input that the controller hands out: what is asked, what is answered.

`wire.piece_codec` turns them into messages and back. The fields have the names of the messages in
coordination.proto, which says what each one means.
"""

from dataclasses import dataclass

BOOK_PREFIX = b'{"pieces":'  # of the cursor that a checkpoint has of an input that is handed out
ENDLESS = 2**52  # pieces of an input without an end


@dataclass(frozen=True, slots=True)
class PieceProgress:
    """How far a worker is with a piece that it holds."""

    number: int
    offset: int = 0
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece that is handed out; it goes on at `offset`."""

    number: int
    offset: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that may be a new piece."""

    path: str
    hour: int = 0


@dataclass(frozen=True, slots=True)
class PiecePlan:
    """What the pieces are of, and how many there are.

    Workers of a run have the same plan. An input that `is_followed` has as many pieces as files are
    found.
    """

    of: str
    total: int = 0
    is_followed: bool = False


@dataclass(frozen=True, slots=True)
class PieceRequest:
    """What worker `index` says and asks."""

    index: int
    incarnation: str
    plan: PiecePlan
    progress: tuple[PieceProgress, ...] = ()
    most: int = 0
    found: tuple[FoundFile, ...] = ()
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class PieceAnswer:
    """What it gets, and all that it holds after that."""

    pieces: tuple[Piece, ...] = ()
    held: frozenset[int] = frozenset()
    is_end: bool = False
    closed_hour: int = -1
    known_files: int = 0
    late_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PieceCounts:
    """How far the input is that is handed out; an endless one has a `total` of 0."""

    total: int
    done: int
    held: int
    returned: int
    is_followed: bool

    @property
    def left(self) -> int:
        """Those that nobody has had to their end, and nobody has now."""
        return max(0, self.total - self.done - self.held)

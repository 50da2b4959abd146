"""What a ps remembers of one client: the outcomes of its last writes, and their bytes."""

import threading
from typing import Generic, TypeVar

from megalith.errors import OutcomeLost, SequenceExpired

R = TypeVar("R")

WINDOW = 64  # writes remembered per client: more than a client has in flight
# Measured with tracemalloc, which a test does again; rounded up.
CLIENT_BYTES = 18 << 10  # of one client with a full window, without the arrays of its replies
ARRAY_BYTES = 128  # of one array in a reply, without its data
# Of one client's replies before the newest one, which only late repetitions ask for
_KEPT_REPLY_BYTES = 1 << 20


class WriteOutcome(Generic[R]):
    """What came of one write.

    Either its reply, or that it was applied though the reply is not kept, or that nobody knows.
    """

    __slots__ = ("is_stripped", "lost", "nbytes", "reply", "rest")

    def __init__(
        self, reply: R | None = None, nbytes: int = 0, lost: str = "", rest: R | None = None
    ) -> None:
        self.reply = reply
        self.nbytes = nbytes
        self.lost = lost
        self.rest = rest
        self.is_stripped = False  # and there is no rest

    @property
    def lasting_bytes(self) -> int:
        """Of a reply that nothing can stand for: only its own client lets go of it."""
        return self.nbytes if self.rest is None else 0

    def repeated(self, client_id: str, sequence: int) -> R:
        """The answer to a repetition of the write."""
        if self.lost:
            raise lost_outcome(client_id, sequence, self.lost)

        if self.is_stripped:
            raise SequenceExpired(
                f"push {sequence} of client {client_id} was applied; its reply is not kept any more"
            )

        # Set, since it is neither lost nor stripped
        return self.reply  # type: ignore[return-value]

    def strip(self) -> None:
        """Let go of the reply, not of what is known."""
        if self.nbytes:
            self.is_stripped = self.rest is None
            self.reply = self.rest  # at once: another thread may be answering a repetition
            self.nbytes = 0


class RememberedClient(Generic[R]):
    """One client's outcomes by sequence.

    `lock` is held while one of its writes is applied. Everything else is guarded by the lock of
    `AppliedPushes`.
    """

    def __init__(self, incarnation: int, own_bytes: int) -> None:
        self.incarnation = incarnation
        self.own_bytes = own_bytes  # without replies
        self.reply_bytes = 0  # kept or promised
        self.lasting_bytes = 0  # of `reply_bytes`, those of replies that nothing can stand for
        self.lock = threading.Lock()
        self.outcomes: dict[int, WriteOutcome[R]] = {}
        self.newest = 0
        self.users = 0  # threads that have a write of this client in hand
        self.used_at = 0.0

    @property
    def nbytes(self) -> int:
        return self.own_bytes + self.reply_bytes

    def promise(self, nbytes: int, *, is_lasting: bool) -> None:
        """Count a reply that is to come; a negative number takes a promise back."""
        self.reply_bytes += nbytes
        if is_lasting:
            self.lasting_bytes += nbytes

    def remember(self, sequence: int, outcome: WriteOutcome[R]) -> None:
        """Keep an outcome whose bytes were promised; what is too old or too much is let go."""
        self.outcomes[sequence] = outcome
        self.newest = max(self.newest, sequence)

        if len(self.outcomes) > WINDOW:
            first = min(self.outcomes)
            oldest = self.outcomes.pop(first)
            self._uncount(oldest)

        newest = self.outcomes[self.newest]
        older_bytes = self.reply_bytes - newest.nbytes
        if older_bytes > _KEPT_REPLY_BYTES:
            self.strip(older_bytes - _KEPT_REPLY_BYTES)

    def strip(self, wanted: int, *, with_rest_only: bool = False) -> None:
        """Let go of replies, the oldest first, until `wanted` bytes are free."""
        enough = self.reply_bytes - wanted
        for sequence in sorted(self.outcomes):
            if self.reply_bytes <= enough:
                break

            outcome = self.outcomes[sequence]
            if outcome.rest is not None or not with_rest_only:
                self._uncount(outcome)
                outcome.strip()

    def _uncount(self, outcome: WriteOutcome[R]) -> None:
        self.reply_bytes -= outcome.nbytes
        self.lasting_bytes -= outcome.lasting_bytes


def lost_outcome(client_id: str, sequence: int, why: str) -> OutcomeLost:
    """The answer to a write of which nobody will know; sequence 0 = it is not known which."""
    which = f"a repeated push of client {client_id}"
    if sequence:
        which = f"push {sequence} of client {client_id}"

    return OutcomeLost(
        f"whether {which} was applied will never be known: {why}; it is not applied again"
    )

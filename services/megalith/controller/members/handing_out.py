"""The controller hands out the input: workers ask for pieces of it."""

from megalith.controller.members.core import ClusterCore
from megalith.errors import NotInCluster, NotReady
from megalith.wire.pieces import PieceAnswer, PieceCounts, PieceRequest


class HandingOut(ClusterCore):
    """Pieces of the input for workers that ask; see `PieceBook`."""

    def take_pieces(self, request: PieceRequest) -> PieceAnswer:
        """What a worker gets is on disk when this returns, so that no other controller gives it.

        If the journal cannot be written, which `ctl status` says, training goes on without that.

        NotReady while it is not known whether the run goes on, and until the session of the worker
        is open.
        """
        self._check_current_lately()
        with self._changed:
            self._check_seat(request)
            book = self._run.book_to_take_from()
            before = book.version
            answer = book.take(request, self._roster.is_gone)
            has_changed = book.version != before
            if book.is_complete:
                self._publish_change()  # workers that are lost are not waited for any more

        if has_changed:
            self._flush_journal()

        return answer

    def _check_seat(self, request: PieceRequest) -> None:
        """NotInCluster unless the process that asks holds the seat that it names."""
        if self._run.is_awaited:
            raise NotReady("whether the run of the last controller goes on is not known yet")

        index = request.index
        workers = self._roster.workers
        if not 0 <= index < len(workers):
            raise NotInCluster(
                f"worker-{index} asks for pieces of the input; there are {len(workers)} workers"
            )

        seat = workers[index]
        is_present = seat.incarnation == request.incarnation
        if seat.incarnation and not is_present:
            raise NotInCluster(
                f"worker-{index} asks for pieces of the input, but another process holds its seat; "
                "start the process again"
            )

        if not is_present or not seat.is_connected:
            raise NotReady(f"the session of worker-{index} is not open yet")

    def piece_counts(self) -> PieceCounts | None:
        """How far the input is; None if the workers of this run take no pieces."""
        with self._changed:
            book = self._run.pieces
            return book.counts() if book.is_in_use else None

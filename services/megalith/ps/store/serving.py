"""Whether a parameter server may serve a request: of its run, and while it knows that it may."""

from collections.abc import Iterator
from contextlib import contextmanager

from megalith.errors import DeadlinePassed, NotReady
from megalith.runtime.joining.lease import Lease
from megalith.wire import routing


class ServingRules:
    """The run of a ps, which is that of its first map and never changes, and its lease.

    Rows of two runs must not be mixed. Without a `lease` nobody else can get this server's index.
    """

    def __init__(self, lease: Lease | None) -> None:
        self._lease = lease
        self._run_id: str | None = None

    @property
    def run_id(self) -> str:
        """Empty = there was no map yet."""
        return self._run_id or ""

    def join_run(self, run_id: str) -> None:
        """Take the run of a map; WrongRun if it is another one than the first map's."""
        if self._run_id is not None:
            routing.check_run(self._run_id, run_id, "the controller")

        self._run_id = run_id

    def check_run(self, run_id: str, index: int) -> None:
        """WrongRun for a request of another run than that of the first map, or of none."""
        if self._run_id is None:
            raise NotReady(f"ps-{index} is in no run yet; retry in a moment")

        routing.check_run(run_id, self._run_id, f"ps-{index}")

    @contextmanager
    def serving(self, run_id: str, index: int, is_controller_away: bool) -> Iterator[None]:
        """Inside, a data request is served; `is_controller_away` is its client's word.

        WrongRun as in `check_run`, and NotReady before anything is done as in `_check_lease`.

        If that changes meanwhile, also because this process did not run, the answer is not given,
        and whether what was done counts is open: DeadlinePassed.
        """
        self.check_run(run_id, index)
        if self._lease is None:
            yield
            return

        self._check_lease(self._lease, index, is_controller_away)

        yield

        if not _is_newest(self._lease, is_controller_away):
            raise DeadlinePassed(
                f"ps-{index} lost its controller while it served this request; another process "
                "may have its seat"
            )

    def check_seat(self, index: int, is_controller_away: bool) -> None:
        """NotReady if another process may have this index, and so newer rows.

        `is_controller_away` is the word of who reads here.
        """
        if self._lease is not None and not _is_newest(self._lease, is_controller_away):
            raise NotReady(_may_be_replaced(index))

    def _check_lease(self, lease: Lease, index: int, is_controller_away: bool) -> None:
        """NotReady unless the lease is held and the client's controller is there, or neither is.

        Without a lease another process may have this index. With one there is a controller, so a
        client that says there is none is cut off from it: it may be replaced, and it does not hear
        of holds.

        A client's word may be old: the request may have waited here while this process was stopped.
        So the word alone is not enough, and this ps must have heard nothing itself.
        """
        if lease.is_held and is_controller_away:
            raise NotReady(
                f"ps-{index} hears its controller and this client does not, so the client would "
                "miss a hold or its own replacement; it is served again once it reaches the "
                "controller"
            )

        if not _is_newest(lease, is_controller_away):
            raise NotReady(_may_be_replaced(index))


def _is_newest(lease: Lease, is_controller_away: bool) -> bool:
    """Whether nobody else can have the seat, or nobody hears a controller that gives it away."""
    return lease.is_held or (is_controller_away and lease.is_controller_silent)


def _may_be_replaced(index: int) -> str:
    return (
        f"ps-{index} has not heard its controller lately, so another process may have its "
        "seat; ask the controller for the map, and retry in a moment"
    )

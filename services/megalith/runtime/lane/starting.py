"""Starting the lane and gRPC of a server together."""

from typing import Protocol


class Startable(Protocol):
    """What listens on a port."""

    def start(self) -> None: ...

    def stop(self, grace_s: float) -> None: ...


def start_both(lane: Startable, rpc: Startable) -> None:
    """Listen on both. If gRPC cannot, the lane does not stay behind."""
    lane.start()
    try:
        rpc.start()
    except BaseException:
        lane.stop(0)
        raise

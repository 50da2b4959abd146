"""How a push that is too large for one call becomes several."""

from collections.abc import Iterator
from dataclasses import replace

from megalith.ps.syncing.request import SyncRequest, TableDelta

LIMIT_BYTES = 4 * 1024 * 1024  # what a gRPC server takes unless it is told otherwise
_SHARE_OF_REST = 64  # a call has names and shapes too, and the last part has what does not divide


def split(request: SyncRequest, limit_bytes: int = LIMIT_BYTES) -> list[SyncRequest]:
    """As many parts as the limit goes into its size, each with a share of the rows of each table.

    The last part has what does not divide. A part is not looked at again: it may be larger than the
    limit if rows are large and few, and a part without rows is left out of what is sent.

    The size is that of Monolith's message, or of the call itself if that is more: small ids take
    two bytes of the one, and eight of the other.
    """
    room = limit_bytes - limit_bytes // _SHARE_OF_REST
    of_message = -(-request.num_bytes // limit_bytes)
    of_call = -(-request.content_bytes // room)
    count = max(of_message, of_call)

    if count <= 1:
        return [request]

    return list(_parts(request, count))


def _parts(request: SyncRequest, count: int) -> Iterator[SyncRequest]:
    for index in range(count):
        deltas = [_part(delta, index, count) for delta in request.deltas]
        yield replace(request, deltas=deltas)


def _part(delta: TableDelta, index: int, count: int) -> TableDelta:
    share = delta.ids.size // count
    begin = index * share
    end = delta.ids.size if index == count - 1 else begin + share
    return TableDelta(delta.table, delta.ids[begin:end], delta.values[begin:end])

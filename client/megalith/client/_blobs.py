"""Blobs: bytes by name, each on the server that owns the name."""

from typing import Any

from megalith.client._transport.servers import Servers
from megalith.errors import InvalidRequest, MessageTooLarge, UnknownBlob
from megalith.protos import parameter_server_pb2 as pb
from megalith.schema.blobs import check_blob_name


class ClusterBlobs:
    """The blobs of a cluster. Calls may be repeated at will: a put is an assignment."""

    def __init__(self, servers: Servers, timeout_s: float) -> None:
        self._servers = servers
        self._timeout_s = timeout_s

    def put(self, name: str, data: Any) -> None:
        """See `Cluster.put_blob`."""
        check_blob_name(name)
        if not isinstance(data, bytes | bytearray | memoryview):
            kind = type(data).__name__
            raise InvalidRequest(f"blob {name!r} is of type {kind}, expected bytes")

        content = bytes(data)
        request = pb.PutBlobRequest(name=name, data=content)
        try:
            self._servers.call(lambda stub: stub.PutBlob, self._to_owner(request), self._timeout_s)
        except MessageTooLarge as error:
            raise MessageTooLarge(
                f"blob {name!r} of {len(content)} bytes does not fit one message: raise "
                "--max-message-bytes of the servers and max_message_bytes of connect, or store "
                f"it in parts of other names ({error})"
            ) from error

    def get(self, name: str) -> bytes:
        """See `Cluster.get_blob`."""
        check_blob_name(name)
        requests = self._to_owner(pb.GetBlobRequest(name=name))
        replies = self._servers.call(lambda stub: stub.GetBlob, requests, self._timeout_s)

        (reply,) = replies.values()
        return reply.data

    def sizes(self) -> dict[str, int]:
        """See `Cluster.blobs`."""
        num_ps = len(self._servers.routing().addresses)
        requests = {index: pb.ListBlobsRequest() for index in range(num_ps)}
        replies = self._servers.call(lambda stub: stub.ListBlobs, requests, self._timeout_s)

        sizes: dict[str, int] = {}
        for reply in replies.values():
            sizes.update(reply.sizes)

        return dict(sorted(sizes.items()))

    def drop(self, name: str) -> int:
        """See `Cluster.drop_blob`."""
        check_blob_name(name)
        requests = self._to_owner(pb.DropBlobRequest(name=name))
        (reply,) = self._servers.call(
            lambda stub: stub.DropBlob, requests, self._timeout_s
        ).values()
        if not reply.was_here:
            raise UnknownBlob(f"there is no blob {name!r}; cluster.blobs() lists them")

        return reply.bytes

    def _to_owner(self, request: Any) -> dict[int, Any]:
        owner = self._servers.routing().owner_of_name(request.name)
        return {owner: request}

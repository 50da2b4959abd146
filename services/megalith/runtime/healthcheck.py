"""The probe of containers, by the gRPC health protocol.

`python -m megalith.runtime.healthcheck HOST:PORT` prints one line. Exit status 0 says SERVING; 1
says anything else, wrong usage included, because container engines give other statuses no meaning.
"""

import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from megalith.wire import channel

_DEADLINE_S = 2.0  # a server that is alive answers in milliseconds, a busy one within this


def check(address: str) -> tuple[bool, str]:
    """Whether the server at `address` is SERVING, and what to say about it."""
    request = health_pb2.HealthCheckRequest()
    with channel.open_channel(address) as probe:
        stub = health_pb2_grpc.HealthStub(probe)
        try:
            answer = stub.Check(request, timeout=_DEADLINE_S)
        except grpc.RpcError as error:
            return False, f"{address}: {_reason(error)}"

    response = health_pb2.HealthCheckResponse
    is_serving = answer.status == response.SERVING
    name = response.ServingStatus.Name(answer.status)
    return is_serving, f"{address}: {name}"


def main(argv: Sequence[str]) -> int:
    """Check the one address given; returns the exit status."""
    if len(argv) != 1:
        print("usage: python -m megalith.runtime.healthcheck HOST:PORT", file=sys.stderr)
        return 1

    is_serving, line = check(argv[0])
    print(line, file=sys.stdout if is_serving else sys.stderr)
    return 0 if is_serving else 1


def _reason(error: grpc.RpcError) -> str:
    if not isinstance(error, grpc.Call):
        return str(error)

    status = error.code()
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {_DEADLINE_S:.0f} s"

    details = error.details() or ""
    one_line = " ".join(details.split())
    return f"{status.name}: {one_line}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

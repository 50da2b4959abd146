"""`python -m megalith.runtime.healthcheck HOST:PORT`: the probe of containers, by the gRPC health protocol.

Prints one line. Exit status 0 says SERVING; 1 says anything else, wrong usage included, because container engines
give other statuses no meaning.
"""

import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from megalith.wire import channel

_DEADLINE_S = 2.0  # a server that is alive answers in milliseconds, a busy one within this


def check(address: str) -> tuple[bool, str]:
    """Whether the server at `address` is SERVING, and what to say about it."""
    with channel.open_channel(address) as probe:
        try:
            answer = health_pb2_grpc.HealthStub(probe).Check(
                health_pb2.HealthCheckRequest(), timeout=_DEADLINE_S
            )
        except grpc.RpcError as error:
            return False, f"{address}: {_reason(error)}"
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return answer.status == health_pb2.HealthCheckResponse.SERVING, f"{address}: {status}"


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
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {_DEADLINE_S:.0f} s"
    return f"{error.code().name}: {' '.join((error.details() or '').split())}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

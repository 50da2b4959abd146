"""The one table between error classes and gRPC statuses, and the way back."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from megalith import errors
from megalith.errors import MegalithError

CODE_KEY = "megalith-error"  # trailing metadata: the error class's `code`
# Trailing metadata: the error's `retry_for_s`; left out when it is 0.
RETRY_KEY = "megalith-retry-for-s"

# What grpc itself answers when a server has as many calls under way as `maximum_concurrent_rpcs`
# allows.
_TOO_MANY_CALLS = "Concurrent RPC limit exceeded"

# Most specific class wins; every class has itself or an ancestor here (a test walks them all).
STATUS_BY_ERROR: dict[type[MegalithError], grpc.StatusCode] = {
    MegalithError: grpc.StatusCode.UNKNOWN,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Conflict: grpc.StatusCode.ALREADY_EXISTS,
    errors.WrongPlace: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AccessDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.StaleEpoch: grpc.StatusCode.ABORTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlinePassed: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.LimitExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.OutcomeUnknown: grpc.StatusCode.INTERNAL,
    errors.SaveFailed: grpc.StatusCode.INTERNAL,
    errors.CheckpointDamaged: grpc.StatusCode.DATA_LOSS,
    errors.RankFailed: grpc.StatusCode.INTERNAL,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}

# What a bare status means when no Megalith server spoke: the transport, a proxy or the deadline
# did.
_ERROR_BY_STATUS: dict[grpc.StatusCode, type[MegalithError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.PeerUnreachable,
    # Another thread closed the channel, to find the peer again
    grpc.StatusCode.CANCELLED: errors.PeerUnreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlinePassed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.MessageTooLarge,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.PERMISSION_DENIED: errors.AccessDenied,
    grpc.StatusCode.UNAUTHENTICATED: errors.AccessDenied,
    grpc.StatusCode.ALREADY_EXISTS: errors.Conflict,
    grpc.StatusCode.ABORTED: errors.StaleEpoch,
    grpc.StatusCode.INTERNAL: errors.InternalError,
}

# Bare statuses of a call that broke somewhere on its way, there or back: the server may have done
# what it asked.
_BROKEN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
)

# "errors resolving HOST: [...: Domain name not found]", "failed to connect to all addresses; last
# error: ...: Connection refused": the reason comes last
_UNREACHED = re.compile(r"(?:errors resolving|failed to connect to all addresses).*: ([^:\]]+)\]?$")


def status_of(error: type[MegalithError]) -> grpc.StatusCode:
    """The status that a server answers with for this class."""
    return next(STATUS_BY_ERROR[base] for base in error.__mro__ if base in STATUS_BY_ERROR)


def error_from_rpc(error: grpc.RpcError, peer: str) -> MegalithError:
    """The same class that the server raised.

    `peer` names the address when only the transport spoke.
    """
    if not isinstance(error, grpc.Call):
        broken = errors.InternalError(f"{peer}: {error}")
        broken.is_answer = False
        return broken

    metadata = dict(error.trailing_metadata() or ())
    if CODE_KEY in metadata:
        code = str(metadata[CODE_KEY])
        known = errors.error_for(code)(error.details())

        hint = str(metadata.get(RETRY_KEY, ""))
        known.retry_for_s = _seconds(hint)
        return known

    status = error.code()
    details = error.details() or ""
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_MANY_CALLS in details:
        return errors.Overloaded(f"{peer}: {details}")

    kind = _ERROR_BY_STATUS.get(status, MegalithError)
    bare = kind(f"{peer}: {_in_words(details)}")
    bare.is_answer = status not in _BROKEN
    return bare


def _in_words(details: str) -> str:
    """What gRPC says of a call, and of a server that it did not reach the reason alone."""
    if details == "Deadline Exceeded":
        return "no answer in time"

    unreached = _UNREACHED.match(details)
    return f"cannot be reached ({unreached[1]})" if unreached else details


def metadata_of(error: MegalithError) -> tuple[tuple[str, str], ...]:
    """What travels beside the status and the text."""
    code = (CODE_KEY, error.code)
    if not error.retry_for_s:
        return (code,)

    hint = (RETRY_KEY, f"{error.retry_for_s:.3f}")
    return (code, hint)


def _seconds(text: str) -> float:
    try:
        seconds = float(text or 0)
    except ValueError:
        return 0.0

    return seconds if 0 <= seconds < math.inf else 0.0


@contextmanager
def translated(peer: str) -> Iterator[None]:
    """Inside, an RpcError leaves as the MegalithError that it stands for.

    So does what grpc raises when another thread closed the channel meanwhile: the peer is to be
    found again.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error, peer) from error
    except grpc.FutureCancelledError as error:
        raise errors.PeerUnreachable(f"{peer}: the call was cancelled") from error
    except ValueError as error:
        # "... on closed channel!" of calls, ": Channel closed!" of futures.
        if "Cannot invoke RPC" not in str(error):
            raise
        raise errors.PeerUnreachable(f"{peer}: the channel was closed") from error

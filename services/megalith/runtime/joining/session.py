"""A member's session with the controller, kept for as long as the process lives."""

import logging
import math
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from enum import Enum
from typing import Protocol

import grpc
import tenacity

from megalith.errors import (
    IndexTaken,
    InternalError,
    LimitExceeded,
    MegalithError,
    PeerUnreachable,
    Unavailable,
)
from megalith.protos import coordination_pb2, coordination_pb2_grpc
from megalith.runtime.joining.lease import BEAT_S, RENEW_S, Lease
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.joining.presence import Presence
from megalith.wire import channel
from megalith.wire.backoff import JitteredBackoff
from megalith.wire.status import error_from_rpc

logger = logging.getLogger(__name__)

# For the controller to read the last report and end the stream; a hung one is not waited for
_CLOSE_S = 1.0
_LOG_EVERY = 10  # tries between two log lines: about ten seconds
# A replacement may arrive before the controller has noticed that its predecessor died. The refusal
# says how long that takes; this is the least, and the margin on top covers the wait between two
# tries.
_TAKEN_GRACE_S = 5.0
_TAKEN_MARGIN_S = 2.0


class _Order(Enum):
    """What the thread that sends is to do next, when it is not to send a message that is queued."""

    REPORT = "send a report at once"
    RENEW = "ask for the lease to be renewed"
    RELEASE = "say that the lease is not needed any more"
    CLOSE = "end the stream"


_Outbox = queue.SimpleQueue[_Order | coordination_pb2.SessionRequest]


class SessionHandler(Protocol):
    """What a ps or worker does with what the controller says.

    Called on the session's thread; must not block long.
    """

    def register(self) -> coordination_pb2.Register: ...
    def report(self) -> coordination_pb2.SessionRequest: ...
    def on_welcome(self, welcome: coordination_pb2.Welcome) -> None: ...
    def on_standby(self) -> None: ...
    def on_measure(self, order: coordination_pb2.Measure) -> None: ...
    def on_ask_report(self, order: int) -> None: ...
    def on_state(self, state: coordination_pb2.ClusterState) -> None: ...
    def on_save_shard(self, order: coordination_pb2.SaveShard) -> None: ...
    def on_shutdown(self, reason: str) -> None: ...
    def on_lost(self, error: MegalithError) -> None:
        """The session is over for good: refused, or no controller for too long."""


class ControllerSession:
    """Holds the session stream; reconnects after a loss, also to a controller at a new address.

    `stop()` sends what is queued, ends the stream and joins the thread. A `lease` is kept renewed,
    and given back by `stop()`: what it allows must be over by then.
    """

    def __init__(
        self,
        settings: MembershipSettings,
        handler: SessionHandler,
        presence: Presence,
        lease: Lease | None = None,
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._presence = presence
        self._lease = lease

        self._registered_at = 0.0  # when the registration of the present stream was sent
        self._incarnation = secrets.token_hex(8)
        self._stopping = threading.Event()
        self._outbox: _Outbox = queue.SimpleQueue()
        self._call: grpc.RpcContext | None = None
        self._was_welcomed = False

        # From the first welcome on the job joined: this member's rows and steps belong to no other.
        self._job = settings.job
        self._address = ""
        self._last_contact = 0.0
        self._taken_since: float | None = None  # the first refusal because another has our seat

        self._generation = 0  # of the newest controller that welcomed us
        self._has_said_unknown = False  # that something it was told is not known here

        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)
        # Of its own: the other one may wait long for an address or a connection.
        self._beating = threading.Thread(target=self._beat, name="lease-beat", daemon=True)

    @property
    def incarnation(self) -> str:
        """What the controller knows this process by."""
        return self._incarnation

    def start(self) -> None:
        self._last_contact = time.monotonic()
        self._thread.start()
        if self._lease is not None:
            self._beating.start()

    def report_now(self) -> None:
        """Send a report without waiting for the next heart-beat."""
        self._outbox.put(_Order.REPORT)

    def send(self, message: coordination_pb2.SessionRequest) -> None:
        """Queue a message; lost if the stream breaks first."""
        self._outbox.put(message)

    def stop(self) -> None:
        self._stopping.set()
        if self._lease is not None:
            self._outbox.put(_Order.RELEASE)

        self._outbox.put(_Order.CLOSE)

        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
            while self._thread.is_alive():
                # Again and again: it may just be opening another stream.
                if self._call is not None:
                    self._call.cancel()

                self._thread.join(_CLOSE_S)

        if self._beating.is_alive():
            self._beating.join()

    def _beat(self) -> None:
        assert self._lease is not None
        self._lease.beat()
        while not self._stopping.wait(BEAT_S):
            self._lease.beat()

    def _run(self) -> None:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_worth_another_try),
            wait=JitteredBackoff(first_s=0.1, longest_s=1.0),
            sleep=tenacity.sleep_using_event(self._stopping),
            before_sleep=self._log_retry,
            reraise=True,
        )
        try:
            retrying(self._hold_session)
        except MegalithError as error:
            if not self._stopping.is_set():
                self._handler.on_lost(self._explained(error))
        except Exception:
            logger.exception("the session thread failed")
            lost = MegalithError("the session thread failed; see the traceback above")
            self._handler.on_lost(lost)

    def _is_worth_another_try(self, error: BaseException) -> bool:
        """A registration is idempotent, so only time and refusals end the tries."""
        if self._stopping.is_set() or not isinstance(error, MegalithError):
            return False

        now = time.monotonic()
        is_passing = _is_passing(error)

        if self._lease is not None and not is_passing:
            self._lease.deny()

        if isinstance(error, IndexTaken):
            if self._taken_since is None:
                self._taken_since = now

            patience_s = max(_TAKEN_GRACE_S, error.retry_for_s + _TAKEN_MARGIN_S)
            return now - self._taken_since < patience_s

        wanted = self._settings
        patience_s = wanted.rejoin_timeout_s if self._was_welcomed else wanted.join_timeout_s
        return is_passing and now - self._last_contact < patience_s

    def _log_retry(self, attempt: tenacity.RetryCallState) -> None:
        number = attempt.attempt_number
        if number > 1 and number % _LOG_EVERY:
            return

        error = attempt.outcome and attempt.outcome.exception()
        logger.warning("no session with the controller, trying again: %s", error)

    def _explained(self, error: MegalithError) -> MegalithError:
        if not isinstance(error, Unavailable):
            return error

        silent_s = time.monotonic() - self._last_contact
        return PeerUnreachable(
            f"no controller after {silent_s:.0f} s, last tried: {error}; "
            "start one, or correct --controller or --model-dir"
        )

    def _hold_session(self) -> None:
        """One stream from registration to its end.

        Returns on stop(), raises when the stream is lost.
        """
        address = self._presence.find_controller()
        outbox: _Outbox = queue.SimpleQueue()
        self._outbox = outbox
        if self._stopping.is_set():
            return

        with channel.open_channel(address) as session_channel:
            stub = coordination_pb2_grpc.CoordinationStub(session_channel)
            responses = stub.Session(self._outgoing(outbox))
            self._call = responses

            try:
                for response in responses:
                    self._dispatch(response)
                    # Not before: a controller that is not obeyed is no contact.
                    self._last_contact = time.monotonic()
            except grpc.RpcError as error:
                raise error_from_rpc(error, f"controller {address}") from error
            finally:
                outbox.put(_Order.CLOSE)
                responses.cancel()

        if not self._stopping.is_set():
            raise PeerUnreachable(f"controller {address} ended the session")

    def _outgoing(self, outbox: _Outbox) -> Iterator[coordination_pb2.SessionRequest]:
        """The registration; then reports, renewals and what is queued, until the stream ends."""
        register = self._registration()
        self._address = register.address
        self._registered_at = time.monotonic()
        yield coordination_pb2.SessionRequest(register=register)

        report_at = time.monotonic() + self._settings.heartbeat_s
        renew_at = math.inf if self._lease is None else time.monotonic() + RENEW_S

        while True:
            message = self._next_message(outbox, report_at, renew_at)
            if message is _Order.CLOSE:
                return

            now = time.monotonic()

            if message is _Order.RENEW or message is _Order.RELEASE:
                renew_at = now + RENEW_S
                yield _renewal(now, is_last=message is _Order.RELEASE)
                continue

            report_at = now + self._settings.heartbeat_s

            if isinstance(message, coordination_pb2.SessionRequest):
                yield message
            else:
                yield self._handler.report()

    def _registration(self) -> coordination_pb2.Register:
        register = self._handler.register()
        register.incarnation = self._incarnation

        register.heartbeat_s = self._settings.heartbeat_s
        register.job = self._job
        register.pid = os.getpid()
        register.host = socket.gethostname()
        register.has_lease = self._lease is not None

        return register

    def _next_message(
        self, outbox: _Outbox, report_at: float, renew_at: float
    ) -> _Order | coordination_pb2.SessionRequest:
        """What is queued, or what is due first when nothing is.

        A renewal that is due goes before everything that is queued.
        """
        now = time.monotonic()
        if renew_at <= now:
            return _Order.RENEW

        due_in_s = min(report_at, renew_at) - now
        try:
            return outbox.get(timeout=max(0.0, due_in_s))
        except queue.Empty:
            return _Order.RENEW if renew_at < report_at else _Order.REPORT

    def _dispatch(self, response: coordination_pb2.SessionResponse) -> None:
        match response.WhichOneof("kind"):
            case "welcome":
                self._take_welcome(response.welcome)
            case "standby":
                self._was_welcomed = True
                self._presence.announce(self._address)
                self._handler.on_standby()
            case "renewed":
                if self._lease is not None:
                    self._lease.renew(response.renewed.sent_ns / 1e9)
            case "measure":
                self._handler.on_measure(response.measure)
            case "ask_report":
                self._handler.on_ask_report(response.ask_report.order)
            case "state":
                self._handler.on_state(response.state)
            case "save_shard":
                self._handler.on_save_shard(response.save_shard)
            case "shutdown":
                if self._lease is not None:
                    self._lease.deny()

                self._handler.on_shutdown(response.shutdown.reason)
            case _:
                if not self._has_said_unknown:
                    self._has_said_unknown = True
                    logger.warning(
                        "the controller says what this process does not know, it is ignored; "
                        "is the controller of a newer version?"
                    )

    def _take_welcome(self, welcome: coordination_pb2.Welcome) -> None:
        self._obey(welcome.generation)
        self._was_welcomed = True
        self._job = welcome.job
        if self._lease is not None:
            self._lease.renew(self._registered_at)

        self._taken_since = None
        self._presence.announce(self._address)
        self._handler.on_welcome(welcome)

    def _obey(self, generation: int) -> None:
        """Stay with the newest controller.

        PeerUnreachable for one that has been replaced and does not know it yet.
        """
        if generation < self._generation:
            raise PeerUnreachable(
                f"the controller is generation {generation} "
                f"and was replaced by generation {self._generation}"
            )

        self._generation = generation


def _is_passing(error: MegalithError) -> bool:
    """Whether the controller may take this process in later.

    A stream that breaks on its way, in whatever manner, and a fault inside the controller are no
    refusals: a ps that exited for them would take its rows along.
    """
    is_refusal = error.is_answer and not isinstance(
        error, Unavailable | LimitExceeded | InternalError
    )
    return not is_refusal


def _renewal(now: float, *, is_last: bool) -> coordination_pb2.SessionRequest:
    sent_ns = int(now * 1e9)
    renewal = coordination_pb2.Renewal(sent_ns=sent_ns, is_last=is_last)
    return coordination_pb2.SessionRequest(renewal=renewal)

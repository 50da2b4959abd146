"""A process's place in the cluster: its session with the controller, kept for as long as the process lives."""

import logging
import math
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc
import tenacity

from megalith.protos import coordination_pb2, coordination_pb2_grpc
from megalith.runtime.discovery.settings import DiscoverySettings
from megalith.runtime.lease import RENEW_S, Lease
from megalith.runtime.presence import Presence
from megalith.runtime.settings import setting
from megalith.wire import channel
from megalith.wire.errors import (
    IndexTaken,
    InvalidSetting,
    LimitExceeded,
    MegalithError,
    PeerUnreachable,
    Unavailable,
)
from megalith.wire.status import error_from_rpc

logger = logging.getLogger(__name__)

_REPORT_NOW = object()  # in the outbox: send a report at once
_RENEW = object()  # in the outbox: ask for the lease to be renewed
_RELEASE = object()  # in the outbox: the lease is not needed any more
_CLOSE = object()  # in the outbox: end the stream
_CLOSE_S = 1.0  # for the controller to read the last report and end the stream; a hung one is not waited for
_LOG_EVERY = 10  # tries between two log lines: about ten seconds
MAX_HEARTBEAT_S = (
    300.0  # a member is given up after three; one that reports less often would never be missed
)
# A replacement may arrive before the controller has noticed that its predecessor died. The refusal says how long that
# takes; this is the least, and the margin on top covers the wait between two tries.
_TAKEN_GRACE_S = 5.0
_TAKEN_MARGIN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSettings:
    """How a ps or worker finds and keeps its controller."""

    controller: str = setting(
        "host:port of the controller; empty = ask --discovery, then the model directory.", ""
    )
    model_dir: str = setting(
        "Directory of the job; the controller's address is looked up here.", ""
    )
    job: str = setting(
        "Name of the job to join; a controller of another one is refused. Empty = any.", ""
    )
    heartbeat_s: float = setting(
        "Seconds between reports; shorter notices a hung process earlier.", 1.0
    )
    join_timeout_s: float = setting(
        "Seconds to look for the controller at start before giving up.", 30.0
    )
    rejoin_timeout_s: float = setting(
        "Seconds to wait for a lost controller to come back before giving up.", 600.0
    )

    def __post_init__(self) -> None:
        for name in ("heartbeat_s", "join_timeout_s", "rejoin_timeout_s"):
            if not getattr(self, name) > 0:
                raise InvalidSetting(
                    f"--{name.replace('_', '-')}={getattr(self, name)}: must be above 0"
                )
        if self.heartbeat_s > MAX_HEARTBEAT_S:
            raise InvalidSetting(f"--heartbeat-s={self.heartbeat_s}: above {MAX_HEARTBEAT_S:.0f}")

    @property
    def model_name(self) -> str:
        """What metrics are tagged with; empty if only the controller's address is known."""
        return self.job or Path(self.model_dir).name

    def open_presence(self, name: str, index: int, discovery: DiscoverySettings) -> Presence:
        """How this process finds its controller and is found itself."""
        return Presence(
            name, index, discovery.open(self.job, self.model_dir), self.controller, self.model_dir
        )

    def check_with(self, discovery: DiscoverySettings) -> None:
        """InvalidSetting if nothing says where to join."""
        if not self.controller and not self.model_dir and not discovery.is_used:
            raise InvalidSetting(
                "neither --controller nor --model-dir is given, nor --discovery; one of them must say where to join"
            )
        discovery.check(self.job, self.model_dir)


class MemberHandler(Protocol):
    """What a ps or worker does with what the controller says. Called on the session's thread; must not block long."""

    def register(self) -> coordination_pb2.Register: ...
    def report(self) -> coordination_pb2.SessionRequest: ...
    def on_welcome(self, welcome: coordination_pb2.Welcome) -> None: ...
    def on_standby(self) -> None: ...
    def on_measure(self, order: coordination_pb2.Measure) -> None: ...
    def on_state(self, state: coordination_pb2.ClusterState) -> None: ...
    def on_save_shard(self, order: coordination_pb2.SaveShard) -> None: ...
    def on_shutdown(self, reason: str) -> None: ...
    def on_lost(self, error: MegalithError) -> None:
        """The session is over for good: refused, or no controller for too long."""


class Member:
    """Holds the session stream; reconnects after a loss, also to a controller at a new address.

    `stop()` sends what is queued, ends the stream and joins the thread. A `lease` is kept renewed, and given back by
    `stop()`: what it allows must be over by then.
    """

    def __init__(
        self,
        settings: MembershipSettings,
        handler: MemberHandler,
        presence: Presence,
        lease: Lease | None = None,
    ) -> None:
        self._settings, self._handler, self._presence = settings, handler, presence
        self._lease = lease
        self._registered_at = 0.0  # when the registration of the present stream was sent
        self._incarnation = secrets.token_hex(8)
        self._stopping = threading.Event()
        self._outbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._call: grpc.RpcContext | None = None
        self._was_welcomed = False
        self._job = (
            settings.job
        )  # from the first welcome on the one joined: its rows and steps belong to no other
        self._address = ""
        self._last_contact = 0.0
        self._taken_since: float | None = (
            None  # the first refusal because another process has our place
        )
        self._generation = 0  # of the newest controller that welcomed us
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    def start(self) -> None:
        self._last_contact = time.monotonic()
        self._thread.start()

    def report_now(self) -> None:
        """Send a report without waiting for the next heart-beat."""
        self._outbox.put(_REPORT_NOW)

    def send(self, message: coordination_pb2.SessionRequest) -> None:
        """Queue a message; lost if the stream breaks first."""
        self._outbox.put(message)

    def stop(self) -> None:
        self._stopping.set()
        if self._lease is not None:
            self._outbox.put(_RELEASE)
        self._outbox.put(_CLOSE)
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
            if self._call is not None:
                self._call.cancel()
            self._thread.join()

    def _run(self) -> None:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_worth_another_try),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
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
            self._handler.on_lost(
                MegalithError("the session thread failed; see the traceback above")
            )

    def _is_worth_another_try(self, error: BaseException) -> bool:
        """A registration is idempotent, so only time and refusals end the tries."""
        if self._stopping.is_set():
            return False
        now = time.monotonic()
        if isinstance(error, IndexTaken):
            if self._taken_since is None:
                self._taken_since = now
            return now - self._taken_since < max(
                _TAKEN_GRACE_S, error.retry_for_s + _TAKEN_MARGIN_S
            )
        silent_s = now - self._last_contact
        limit_s = (
            self._settings.rejoin_timeout_s if self._was_welcomed else self._settings.join_timeout_s
        )
        return isinstance(error, Unavailable | LimitExceeded) and silent_s < limit_s

    def _log_retry(self, attempt: tenacity.RetryCallState) -> None:
        if attempt.attempt_number == 1 or attempt.attempt_number % _LOG_EVERY == 0:
            logger.warning(
                "no session with the controller, trying again: %s",
                attempt.outcome and attempt.outcome.exception(),
            )

    def _explained(self, error: MegalithError) -> MegalithError:
        if not isinstance(error, Unavailable):
            return error
        silent_s = time.monotonic() - self._last_contact
        return PeerUnreachable(
            f"no controller after {silent_s:.0f} s, last tried: {error}; "
            "start one, or correct --controller or --model-dir"
        )

    def _hold_session(self) -> None:
        """One stream from registration to its end. Returns on stop(), raises when the stream is lost."""
        address = self._presence.find_controller()
        self._outbox = outbox = queue.SimpleQueue[object]()
        if self._stopping.is_set():
            return
        with channel.open_channel(address) as session_channel:
            stub = coordination_pb2_grpc.CoordinationStub(session_channel)
            self._call = responses = stub.Session(self._outgoing(outbox))
            try:
                for response in responses:
                    self._dispatch(response)
                    self._last_contact = (
                        time.monotonic()
                    )  # not before: one that is not obeyed is no contact
            except grpc.RpcError as error:
                raise error_from_rpc(error, f"controller {address}") from error
            finally:
                outbox.put(_CLOSE)
                responses.cancel()
        if not self._stopping.is_set():
            raise PeerUnreachable(f"controller {address} ended the session")

    def _outgoing(
        self, outbox: queue.SimpleQueue[object]
    ) -> Iterator[coordination_pb2.SessionRequest]:
        register = self._handler.register()
        register.incarnation, register.heartbeat_s = self._incarnation, self._settings.heartbeat_s
        register.job = self._job
        register.pid = os.getpid()
        register.host = socket.gethostname()
        register.has_lease = self._lease is not None
        self._address = register.address
        self._registered_at = time.monotonic()
        yield coordination_pb2.SessionRequest(register=register)
        report_at = time.monotonic() + self._settings.heartbeat_s
        renew_at = math.inf if self._lease is None else time.monotonic() + RENEW_S
        while True:
            now = time.monotonic()
            message = _RENEW if renew_at <= now else self._next_message(outbox, report_at, renew_at)
            if message is _CLOSE:
                return
            now = time.monotonic()
            if message is _RENEW or message is _RELEASE:
                renew_at = now + RENEW_S
                renewal = coordination_pb2.Renewal(
                    sent_ns=int(now * 1e9), is_last=message is _RELEASE
                )
                yield coordination_pb2.SessionRequest(renewal=renewal)
                continue
            report_at = now + self._settings.heartbeat_s
            if isinstance(message, coordination_pb2.SessionRequest):
                yield message
            else:
                yield self._handler.report()

    def _next_message(
        self, outbox: queue.SimpleQueue[object], report_at: float, renew_at: float
    ) -> object:
        """What is queued, or what is due first when nothing is."""
        try:
            return outbox.get(timeout=max(0.0, min(report_at, renew_at) - time.monotonic()))
        except queue.Empty:
            return _RENEW if renew_at < report_at else _REPORT_NOW

    def _dispatch(self, response: coordination_pb2.SessionResponse) -> None:
        match response.WhichOneof("kind"):
            case "welcome":
                self._obey(response.welcome.generation)
                self._was_welcomed, self._job = True, response.welcome.job
                if self._lease is not None:
                    self._lease.renew(self._registered_at)
                self._taken_since = None
                self._presence.announce(self._address)
                self._handler.on_welcome(response.welcome)
            case "standby":
                self._was_welcomed = True
                self._presence.announce(self._address)
                self._handler.on_standby()
            case "renewed":
                if self._lease is not None:
                    self._lease.renew(response.renewed.sent_ns / 1e9)
            case "measure":
                self._handler.on_measure(response.measure)
            case "state":
                self._handler.on_state(response.state)
            case "save_shard":
                self._handler.on_save_shard(response.save_shard)
            case "shutdown":
                self._handler.on_shutdown(response.shutdown.reason)

    def _obey(self, generation: int) -> None:
        """Stay with the newest controller: PeerUnreachable for one that has been replaced and does not know it yet."""
        if generation < self._generation:
            raise PeerUnreachable(
                f"the controller is generation {generation} and was replaced by generation {self._generation}"
            )
        self._generation = generation

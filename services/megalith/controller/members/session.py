"""The life of a member's session, from its registration to its end."""

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from megalith.controller.coordinator import Coordinator
from megalith.controller.members.directives import (
    Renewed,
    SessionEnd,
    ShutdownOrder,
    StandBy,
    Told,
    Welcome,
)
from megalith.controller.members.roster import Registration, Role
from megalith.controller.members.sessions import LIMIT, Mailbox
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.start_point import StartPoint
from megalith.controller.saving.whole_model import ShardSaved
from megalith.controller.selection.formation import Formation
from megalith.errors import MegalithError, Overloaded
from megalith.wire.reports import PsReport, WorkerReport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Renewal:
    """A member asks for its lease to be renewed, or gives it back."""

    sent_ns: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """A worker has measured parameter servers."""

    order: int
    rows_per_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Reported:
    """A worker has reported because it was asked to."""

    order: int


Said = WorkerReport | PsReport | ShardSaved | Renewal | Measured | Reported


class Stream(Protocol):
    """The connection to one member; a gRPC context is one."""

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call back when it ends, from any thread; False if it has ended already."""

    def cancel(self) -> bool:
        """End it."""


class SessionHost:
    """Leads the sessions of all members, each on the thread that iterates over `hold`.

    A stream holds a thread of the server's pool. At most `max_sessions` are held, because strangers
    could keep operators from being answered otherwise.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        formation: Formation,
        saver: Saver,
        start_point: StartPoint,
        max_sessions: int,
    ) -> None:
        self._coordinator = coordinator
        self._formation = formation
        self._saver = saver
        self._start_point = start_point
        self._max_sessions = max_sessions
        self._free_sessions = threading.BoundedSemaphore(max_sessions)

    def hold(
        self, registration: Registration, said: Iterator[Said], stream: Stream
    ) -> Generator[Told, None, None]:
        """What the member is told, until its session ends.

        `said` is what the member says, until its stream ends or breaks.
        """
        if not self._free_sessions.acquire(blocking=False):
            raise Overloaded(
                f"{self._max_sessions} sessions are open already; is a member starting in a loop?"
            )

        try:
            if registration.role is Role.PS and self._formation.is_selective:
                yield from self._stand_by(registration, said, stream)
            else:
                yield from self._seat(registration, said, stream)
        finally:
            self._free_sessions.release()

    def _stand_by(
        self, registration: Registration, said: Iterator[Said], stream: Stream
    ) -> Iterator[Told]:
        """A ps among more than are needed: it waits until it is chosen."""
        self._coordinator.check(registration)  # before the offer, which may take a shard
        offer = self._formation.offer(registration)
        try:
            if not stream.add_callback(lambda: self._formation.withdraw(offer)):
                return
            if offer.shard is None:
                yield StandBy()

            shard = self._formation.wait(offer)
            if shard is not None:
                yield from self._seat(replace(registration, index=shard), said, stream)
            elif offer.reason:
                yield ShutdownOrder(offer.reason)
        finally:
            self._formation.withdraw(offer)

    def _seat(
        self, registration: Registration, said: Iterator[Said], stream: Stream
    ) -> Iterator[Told]:
        """The member has its seat until the stream ends or another process takes it."""
        welcome = self._welcome(registration)
        mailbox = Mailbox(on_overflow=lambda: _drop(registration, stream))
        session = self._coordinator.join(registration, mailbox.put)

        def ended() -> None:  # also while the thread of this session is stuck in a send
            self._coordinator.leave(session)
            mailbox.close()

        if not stream.add_callback(ended):
            ended()

        refusals: list[MegalithError] = []
        reader = threading.Thread(
            target=self._listen,
            args=(session, said, mailbox, refusals),
            name="session-reader",
            daemon=True,
        )

        reader.start()

        try:
            yield welcome
            while not isinstance(directive := mailbox.get(), SessionEnd):
                yield directive

            if refusals:
                raise refusals[0]
        finally:
            self._coordinator.leave(session)

    def _welcome(self, registration: Registration) -> Welcome:
        """With the checkpoint that a ps starts from. One that is back has its rows."""
        if registration.role is not Role.PS or registration.held_shard is not None:
            return Welcome(registration.index)

        chain = self._start_point.find()
        if chain is None:
            return Welcome(registration.index)

        dropped = self._coordinator.dropped_tables()
        choices = self._start_point.choices_of(chain, dropped)
        return Welcome(registration.index, str(chain.directory), chain.number, choices)

    def _listen(
        self,
        session: int,
        said: Iterator[Said],
        mailbox: Mailbox,
        refusals: list[MegalithError],
    ) -> None:
        """Until the stream ends, or the member says what cannot be: then `refusals` gets why."""
        try:
            for one in said:
                self._hear(session, one, mailbox)
        except MegalithError as error:
            logger.warning("a session is ended, its member reports what cannot be: %s", error)
            refusals.append(error)
        finally:
            mailbox.close()

    def _hear(self, session: int, said: Said, mailbox: Mailbox) -> None:
        match said:
            case WorkerReport():
                self._coordinator.report_worker(session, said)
            case PsReport():
                self._coordinator.report_ps(session, said)
            case ShardSaved():
                self._saver.answer(session, said)
            case Renewal(sent_ns, is_last):
                if self._coordinator.renew(session, is_last):
                    mailbox.put(Renewed(sent_ns))
            case Measured(order, rows_per_s):
                self._formation.answer(session, order, rows_per_s)
            case Reported(order):
                self._coordinator.has_reported(session, order)


def _drop(registration: Registration, stream: Stream) -> None:
    logger.warning(
        "%s leaves %d directives unread: its session is dropped",
        registration.name,
        LIMIT,
    )
    stream.cancel()

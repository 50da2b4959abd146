"""The job as the resource manager sees it: whether it runs, how it ended, whether it is held."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Protocol

from megalith.errors import (
    ApplicationEnded,
    BarrierAlreadyPlaced,
    DeadlinePassed,
    InvalidRequest,
    Unavailable,
)

logger = logging.getLogger(__name__)

HOLDER = "platform"  # whose hold a suspend is: an operator's resume does not end it


class FinalStatus(Enum):
    """As the platform names it."""

    UNDEFINED = "UNDEFINED"  # the job runs
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class FinalOutcome:
    """How a job ended. `grace_s` is what its processes get to end; 0 = no limit was named."""

    succeeded: bool
    reason: str
    exit_code: int = 0
    grace_s: float = 0.0

    @property
    def final_status(self) -> FinalStatus:
        return FinalStatus.SUCCEEDED if self.succeeded else FinalStatus.FAILED


def kept_ending(kept: Mapping[str, Any]) -> FinalOutcome | None:
    """The ending that an earlier AppMaster wrote down.

    ValueError or TypeError for anything else.
    """
    if not kept:
        return None

    ending = FinalOutcome(**kept)
    is_well_formed = (
        isinstance(ending.succeeded, bool)
        and isinstance(ending.reason, str)
        and isinstance(ending.exit_code, int)
        and isinstance(ending.grace_s, int | float)
    )

    if not is_well_formed:
        raise ValueError(f"not an ending: {dict(kept)}")

    return ending


class JobController(Protocol):
    """What the job asks of the cluster's controller; the SDK's Controller is one."""

    def stop(self, *, reason: str, holder: str) -> None: ...
    def resume(self, holder: str) -> None: ...
    def end_job(self, succeeded: bool, reason: str, *, at_once: bool) -> None: ...


class Job:
    """One application. `_lock` guards how it ends; the controller is called outside it.

    `can_force` says whether somebody else will end the processes if the controller does not answer.
    """

    def __init__(
        self,
        app_id: str,
        controller: JobController,
        can_force: Callable[[], bool],
        kept: Mapping[str, Any],
        keep: Callable[[dict[str, Any]], None],
    ) -> None:
        self.app_id = app_id
        self._controller = controller
        self._can_force = can_force
        self._keep = keep

        self._lock = threading.Lock()
        self._ending = kept_ending(kept)
        self._asked: FinalOutcome | None = None  # what the controller is being told

    @property
    def ending(self) -> FinalOutcome | None:
        """None while the job runs."""
        with self._lock:
            return self._ending

    @property
    def final_status(self) -> FinalStatus:
        ending = self.ending
        return ending.final_status if ending else FinalStatus.UNDEFINED

    def end(self, ending: FinalOutcome) -> None:
        """End the job. The first end decides.

        Repeating it changes nothing, contradicting it is ApplicationEnded.
        """
        if ending.grace_s < 0:
            grace_ms = ending.grace_s * 1000
            raise InvalidRequest(f"graceful_shutdown_timeout_ms={grace_ms:.0f}: below 0")

        earlier = self.ending
        if earlier is not None:
            self._refuse_contradiction(earlier, ending)
            return

        logger.info("job ends succeeded=%s reason=%s", ending.succeeded, ending.reason)
        said = ending.reason if ending.succeeded else f"killed: {ending.reason}"
        self._ask_for(ending)
        try:
            # Idempotent: the caller may try again. The platform and operators mean now; a savepoint
            # comes before.
            self._controller.end_job(ending.succeeded, said, at_once=True)
        except (Unavailable, DeadlinePassed) as error:
            if not self._can_force():
                self._ask_for(None)
                raise

            logger.warning("no controller to end the job, its supervisor will: %s", error)
        except BaseException:
            self._ask_for(None)
            raise

        self.ended(ending)

    def _ask_for(self, ending: FinalOutcome | None) -> None:
        with self._lock:
            self._asked = ending

    def _refuse_contradiction(self, earlier: FinalOutcome, wanted: FinalOutcome) -> None:
        if earlier.succeeded == wanted.succeeded:
            return

        is_status = earlier.final_status.value
        logger.warning("end refused wanted=%s is=%s", wanted.final_status.value, is_status)
        raise ApplicationEnded(f"{self.app_id} has ended: {is_status}, {earlier.reason}")

    def ended(self, ending: FinalOutcome) -> None:
        """The job is over. The first word counts.

        The controller may say so before it has answered who asked for the end: then the exit code
        and the reason are those that were asked for.
        """
        with self._lock:
            if self._ending is not None:
                return

            asked = self._asked
            is_asked_for = asked is not None and asked.succeeded == ending.succeeded
            self._ending = asked if asked is not None and is_asked_for else ending
            self._keep(asdict(self._ending))

    def suspend(self) -> None:
        """Hold training for the platform, whoever else holds it; holding twice changes nothing."""
        try:
            self._controller.stop(reason="the AppMaster was told to suspend", holder=HOLDER)
        except BarrierAlreadyPlaced:
            logger.info("suspend: the platform holds training already")

    def resume(self) -> None:
        """End the platform's hold.

        Training goes on unless an operator, a save or the health check holds it too.
        """
        self._controller.resume(HOLDER)

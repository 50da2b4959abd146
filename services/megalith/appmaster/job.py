"""The job as the resource manager sees it: whether it runs, how it ended, whether it is held."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Protocol

from megalith.wire.errors import (
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
class Ending:
    """How a job ended. `grace_s` is what its processes get to end; 0 = no limit was named."""

    succeeded: bool
    reason: str
    exit_code: int = 0
    grace_s: float = 0.0

    @property
    def final_status(self) -> FinalStatus:
        return FinalStatus.SUCCEEDED if self.succeeded else FinalStatus.FAILED


def kept_ending(kept: Mapping[str, Any]) -> Ending | None:
    """The ending that an earlier AppMaster wrote down; ValueError or TypeError for anything else."""
    if not kept:
        return None
    ending = Ending(**kept)
    kinds = (
        (ending.succeeded, bool),
        (ending.reason, str),
        (ending.exit_code, int),
        (ending.grace_s, int | float),
    )
    if not all(isinstance(value, kind) for value, kind in kinds):
        raise ValueError(f"not an ending: {dict(kept)}")
    return ending


class JobController(Protocol):
    """What the job asks of the cluster's controller; the SDK's Controller is one."""

    def stop(self, *, reason: str, holder: str) -> None: ...
    def resume(self, holder: str) -> None: ...
    def end_job(self, succeeded: bool, reason: str, *, at_once: bool) -> None: ...


class Job:
    """One application. `_lock` guards its ending; the controller is called outside it.

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
        self._controller, self._can_force, self._keep = controller, can_force, keep
        self._lock = threading.Lock()
        self._ending = kept_ending(kept)

    @property
    def ending(self) -> Ending | None:
        """None while the job runs."""
        with self._lock:
            return self._ending

    @property
    def final_status(self) -> FinalStatus:
        ending = self.ending
        return ending.final_status if ending else FinalStatus.UNDEFINED

    def end(self, ending: Ending) -> None:
        """End the job. The first end decides; repeating it changes nothing, contradicting it is ApplicationEnded."""
        if ending.grace_s < 0:
            raise InvalidRequest(
                f"graceful_shutdown_timeout_ms={ending.grace_s * 1000:.0f}: below 0"
            )
        earlier = self.ending
        if earlier is not None:
            if earlier.succeeded != ending.succeeded:
                logger.warning(
                    "end refused wanted=%s is=%s",
                    ending.final_status.value,
                    earlier.final_status.value,
                )
                raise ApplicationEnded(
                    f"{self.app_id} has ended: {earlier.final_status.value}, {earlier.reason}"
                )
            return
        logger.info("job ends succeeded=%s reason=%s", ending.succeeded, ending.reason)
        try:
            # Idempotent: the caller may try again. The platform and operators mean now; a savepoint comes before.
            said = ending.reason if ending.succeeded else f"killed: {ending.reason}"
            self._controller.end_job(ending.succeeded, said, at_once=True)
        except (Unavailable, DeadlinePassed) as error:
            if not self._can_force():
                raise
            logger.warning("no controller to end the job, its supervisor will: %s", error)
        self.ended(ending)

    def ended(self, ending: Ending) -> None:
        """The job is over. The first word counts."""
        with self._lock:
            if self._ending is None:
                self._ending = ending
                self._keep(asdict(ending))

    def suspend(self) -> None:
        """Hold training for the platform, whoever else holds it; holding twice changes nothing."""
        try:
            self._controller.stop(reason="the AppMaster was told to suspend", holder=HOLDER)
        except BarrierAlreadyPlaced:
            logger.info("suspend: the platform holds training already")

    def resume(self) -> None:
        """End the platform's hold; training goes on unless an operator, a save or the health check holds it too."""
        self._controller.resume(HOLDER)

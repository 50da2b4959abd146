"""When planned saves are made at all."""

import logging
from pathlib import Path

from megalith.runtime.day_window import DayWindow

logger = logging.getLogger(__name__)

ONLINE = "ONLINE"


class SavePermit:
    """Planned saves are made in their hours, and if told so only while the file ONLINE is there.

    Saves that somebody asks for, increments and the last save of a job need no permit. Used by the
    threads of the schedules.
    """

    def __init__(self, model_dir: Path, hours: DayWindow | None, only_online: bool) -> None:
        self._online = model_dir / ONLINE
        self._hours = hours
        self._only_online = only_online
        self._said = ""

    def is_given(self) -> bool:
        """Asked when a save is due; why it is not made is logged when that changes."""
        reason = self.missing()
        if reason != self._said:
            self._said = reason
            if reason:
                logger.info("planned saves wait: %s", reason)
            else:
                logger.info("planned saves are made again")

        return not reason

    def missing(self) -> str:
        """Why no planned save is made now; empty if one is. Any thread may ask."""
        if self._hours is not None and not self._hours.is_open:
            return "their hours of the day are over"
        if self._only_online and not self._online.exists():
            return f"there is no {self._online}"

        return ""

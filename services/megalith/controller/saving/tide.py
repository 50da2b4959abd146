"""The hours of the day in which a job has its machines to itself."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Self

from megalith.errors import InvalidSetting

_WINDOW = re.compile(r"(\d\d?):(\d\d)-(\d\d?):(\d\d)")


def _now() -> time:
    return datetime.now(UTC).time()


@dataclass(frozen=True, slots=True)
class TideWindow:
    """From one time of the day to another, in UTC; over midnight if the first one is later.

    Monolith takes a window over midnight as always open. While the window is closed, a save is
    made every `save_s` seconds, whatever the other settings say.
    """

    start: time
    end: time
    save_s: float
    now: Callable[[], time] = _now

    @classmethod
    def parse(cls, text: str, save_s: float) -> Self | None:
        """A window such as "22:00-06:30"; None for an empty text."""
        if not text and not save_s:
            return None

        match = _WINDOW.fullmatch(text)
        if match is None or not save_s > 0:
            raise InvalidSetting(
                f"--tide-window={text!r} and --tide-save-s={save_s}: give both, the window as "
                "hours of the day in UTC like 22:00-06:30, the seconds above 0"
            )

        hours = [int(digits) for digits in match.groups()]
        try:
            return cls(time(hours[0], hours[1]), time(hours[2], hours[3]), save_s)
        except ValueError as error:
            raise InvalidSetting(f"--tide-window={text!r}: {error}") from error

    @property
    def is_open(self) -> bool:
        now = self.now()
        if self.start < self.end:
            return self.start <= now < self.end

        return now >= self.start or now < self.end

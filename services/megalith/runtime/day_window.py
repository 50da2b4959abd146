"""Hours of the day."""

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
class DayWindow:
    """From one time of the day to another, in UTC; over midnight if the first one is later.

    Monolith takes a window over midnight as always open.
    """

    start: time
    end: time
    now: Callable[[], time] = _now

    @classmethod
    def parse(cls, text: str, flag: str) -> Self:
        """A window such as "22:00-06:30". InvalidSetting that names the flag for another text."""
        match = _WINDOW.fullmatch(text)
        if match is None:
            raise InvalidSetting(f"{flag}={text!r}: give hours of the day in UTC like 22:00-06:30")

        hours = [int(digits) for digits in match.groups()]
        try:
            return cls(time(hours[0], hours[1]), time(hours[2], hours[3]))
        except ValueError as error:
            raise InvalidSetting(f"{flag}={text!r}: {error}") from error

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M} (UTC)"

    @property
    def is_open(self) -> bool:
        now = self.now()
        if self.start < self.end:
            return self.start <= now < self.end

        return now >= self.start or now < self.end

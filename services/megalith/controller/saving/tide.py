"""The hours of the day in which a job has its machines to itself."""

from dataclasses import dataclass
from typing import Self

from megalith.errors import InvalidSetting
from megalith.runtime.day_window import DayWindow


@dataclass(frozen=True, slots=True)
class Tide:
    """While `window` is closed, a save is made every `save_s`, whatever other settings say."""

    window: DayWindow
    save_s: float

    @classmethod
    def parse(cls, window: str, save_s: float) -> Self | None:
        """None without a window."""
        if not window and not save_s:
            return None
        if not window or not save_s > 0:
            raise InvalidSetting(
                f"--tide-window={window!r} and --tide-save-s={save_s}: give both, "
                "the seconds above 0"
            )

        return cls(DayWindow.parse(window, "--tide-window"), save_s)

    @property
    def is_open(self) -> bool:
        return self.window.is_open

"""Files by date and hour: `data/{date}/{hour}/*.parquet`, from a start to an end.

`{date}` stands for 2026-11-01 or 20261101, `{hour}` for 00 to 23. The folders of other names beside
them, such as `latest`, have no date and are left out, and counted.
"""

import datetime
import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from megalith.errors import InvalidSetting
from megalith.runtime.counting import counted

DATE = "{date}"
HOUR = "{hour}"

_HOURS = 24
_DATE_TEXT = r"(\d{4})-?(\d{2})-?(\d{2})"
_HOUR_TEXT = r"([01]\d|2[0-3])"
_MOMENT = re.compile(rf"{_DATE_TEXT}(?:[T ]?{_HOUR_TEXT})?")


@dataclass(frozen=True, slots=True)
class Window:
    """Hours since the year 1, first and last one included; None = no bound."""

    first: int | None = None
    last: int | None = None

    @classmethod
    def parse(cls, start: str, end: str) -> Self:
        """`2026-11-01` is the whole day, `2026-11-01T05` is that hour."""
        first = None
        last = None
        if start:
            first = _hour("--start", start, 0)
        if end:
            last = _hour("--end", end, _HOURS - 1)

        if first is not None and last is not None and first > last:
            raise InvalidSetting(f"--start={start} is after --end={end}")

        return cls(first, last)

    @property
    def is_bounded(self) -> bool:
        return self.first is not None or self.last is not None

    def has(self, hour: int) -> bool:
        is_late_enough = self.first is None or hour >= self.first
        is_early_enough = self.last is None or hour <= self.last
        return is_late_enough and is_early_enough


@dataclass(frozen=True, slots=True)
class DatedFile:
    """`hour` counts from the year 1; it is a day's first one if the pattern has no {hour}."""

    hour: int
    path: str


@dataclass(frozen=True, slots=True)
class DatedFiles:
    """What a pattern names: its files in order of time and name, and what is not among them."""

    files: tuple[DatedFile, ...]
    num_undated: int  # files that have something else in the place of the date
    missing: tuple[int, ...]  # hours or days of a closed window without any file


class DatedPattern:
    """A pattern with {date}, and perhaps {hour}."""

    def __init__(self, pattern: str) -> None:
        if DATE not in pattern:
            raise InvalidSetting(f"--data={pattern}: there is an {{hour}}, but no {{date}}")

        self._pattern = pattern
        self.has_hours = HOUR in pattern
        self._glob = pattern.replace(DATE, "*").replace(HOUR, "*")
        self._expression = re.compile(_expression(pattern))

    def find(self, window: Window) -> DatedFiles:
        """The files of the window that there are now."""
        found = []
        num_undated = 0
        for path in glob.glob(self._glob, recursive=True):
            hour = self._hour_of(path)

            if hour is None:
                num_undated += 1
            elif window.has(hour):
                found.append(DatedFile(hour, path))

        found.sort(key=lambda file: (file.hour, file.path))
        hours = {file.hour for file in found}
        missing = self._missing(window, hours)
        return DatedFiles(tuple(found), num_undated, missing)

    def said(self, hour: int) -> str:
        """An hour, or a day, for messages."""
        day = datetime.date.fromordinal(hour // _HOURS)
        date = day.isoformat()
        if not self.has_hours:
            return date

        return f"{date}T{hour % _HOURS:02d}"

    def _hour_of(self, path: str) -> int | None:
        match = self._expression.fullmatch(path)
        if match is None:
            return None

        # A pattern may have the date in several places: the first one counts.
        hour = int(match["hour"]) if self.has_hours else 0
        return _ordinal(match["date"], hour)

    def _missing(self, window: Window, found: set[int]) -> tuple[int, ...]:
        if window.first is None or window.last is None:
            return ()

        step = 1 if self.has_hours else _HOURS
        first = window.first - window.first % step
        wanted = range(first, window.last + 1, step)
        return tuple(hour for hour in wanted if hour not in found)


def is_dated(pattern: str) -> bool:
    return DATE in pattern or HOUR in pattern


def check_patterns(patterns: Sequence[str], window: Window) -> None:
    """InvalidSetting if the window asks of a pattern what its names do not say."""
    for pattern in patterns:
        if is_dated(pattern):
            has_hours = DatedPattern(pattern).has_hours
            if not has_hours and not _is_of_whole_days(window):
                raise InvalidSetting(
                    f"--data={pattern} has no {{hour}}: --start and --end are days, "
                    "such as 2026-11-01"
                )
        elif window.is_bounded:
            raise InvalidSetting(
                f"--data={pattern} has no {{date}}, so --start and --end choose nothing; "
                "write it where the date is in the path, for example 'data/{date}/*.parquet'"
            )


def left_out(patterns: Sequence[str], window: Window) -> list[str]:
    """What the user should know of files that are not read, one line each."""
    lines = []
    for pattern in patterns:
        if not is_dated(pattern):
            continue

        dated = DatedPattern(pattern)
        found = dated.find(window)
        if found.num_undated:
            files = counted(found.num_undated, "file has", "files have")
            lines.append(f"{pattern}: {files} no date in the path")
        if found.missing:
            unit = "hour" if dated.has_hours else "day"
            missing = counted(len(found.missing), f"{unit} has", f"{unit}s have")
            first = dated.said(found.missing[0])
            lines.append(f"{pattern}: {missing} no file, the first is {first}")

    return lines


def _is_of_whole_days(window: Window) -> bool:
    starts_day = window.first is None or window.first % _HOURS == 0
    ends_day = window.last is None or window.last % _HOURS == _HOURS - 1
    return starts_day and ends_day


def _hour(setting: str, text: str, hour_of_a_day: int) -> int:
    match = _MOMENT.fullmatch(text.strip())
    hour = None
    if match is not None:
        stated = match.group(4)
        date = "".join(match.group(1, 2, 3))
        hour = _ordinal(date, hour_of_a_day if stated is None else int(stated))

    if hour is None:
        raise InvalidSetting(
            f"{setting}={text}: expected a day such as 2026-11-01, or an hour such as 2026-11-01T05"
        )

    return hour


def _ordinal(date: str, hour: int) -> int | None:
    try:
        day = datetime.datetime.strptime(date.replace("-", ""), "%Y%m%d")
    except ValueError:
        return None  # a 31st of February

    return day.toordinal() * _HOURS + hour


def _expression(pattern: str) -> str:
    """The regular expression of a pattern: as `glob` reads it, with the date and hour named."""
    named: set[str] = set()
    parts = re.split(r"(\{date\}|\{hour\}|\*\*/|\*|\?|\[[^\]]+\])", pattern)
    return "".join(_part(part, named) for part in parts)


def _part(part: str, named: set[str]) -> str:
    wildcards = {"**/": r"(?:.*/)?", "*": r"[^/]*", "?": r"[^/]"}
    if part in wildcards:
        return wildcards[part]

    if part in (DATE, HOUR):
        name = part.strip("{}")
        if name in named:
            return f"(?P={name})"

        named.add(name)
        text = r"\d{4}-\d{2}-\d{2}|\d{8}" if part == DATE else r"[01]\d|2[0-3]"
        return f"(?P<{name}>{text})"
    if part.startswith("["):
        return "[^" + part[2:] if part.startswith("[!") else part

    return re.escape(part)

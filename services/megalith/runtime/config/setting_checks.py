"""Checks of settings that many configurations have, for their `__post_init__`."""

import dataclasses
from typing import Any

from megalith.errors import InvalidSetting
from megalith.runtime.config.settings import flag_of


def check_above_0(settings: object, *names: str) -> None:
    """InvalidSetting if one of these settings is 0, below 0 or not a number."""
    for name in names:
        value = getattr(settings, name)
        if not value > 0:
            raise InvalidSetting(f"{flag_of(name)}={value}: must be above 0")


def check_not_below_0(settings: object, *names: str) -> None:
    """InvalidSetting if one of these settings is below 0 or not a number."""
    for name in names:
        value = getattr(settings, name)
        if not value >= 0:
            raise InvalidSetting(f"{flag_of(name)}={value}: below 0")


def check_choices(settings: Any) -> None:
    """InvalidSetting if a setting that has choices is none of them."""
    for field in dataclasses.fields(settings):
        choices = field.metadata.get("choices", ())
        value = getattr(settings, field.name)
        if not choices or value in choices:
            continue

        *others, last = choices
        most = ", ".join(others)
        flag = flag_of(field.name)
        raise InvalidSetting(f"{flag}={value}: expected {most} or {last}")

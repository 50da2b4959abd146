"""JSON for other programs to read. It knows no NaN and no infinity, which Python would write."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: Any) -> str:
    """One line; dataclasses become objects, and numbers that are not finite become null."""
    return json.dumps(_known_to_json(value), allow_nan=False)


def _known_to_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)

    if isinstance(value, Mapping):
        return {name: _known_to_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_known_to_json(each) for each in value]

    if isinstance(value, float) and not math.isfinite(value):
        return None

    return value

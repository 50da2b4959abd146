"""Configurations as JSON, for checkpoints: objects that name their class under "kind"."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from megalith.wire import schema
from megalith.wire.errors import CheckpointDamaged
from megalith.wire.schema import AdmissionConfig, FilterKind


def to_json(value: Any) -> Any:
    """What json.dumps takes, from a schema class, a tuple or mapping of them, or a plain value."""
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def from_json(content: Any) -> Any:
    """The inverse of `to_json`; a class of a newer version is CheckpointDamaged, by name."""
    if isinstance(content, list):
        return tuple(from_json(item) for item in content)
    if not isinstance(content, dict):
        return content
    if "kind" not in content:
        return {int(slot): value for slot, value in content.items()}  # JSON has no integer keys
    if content["kind"] in list(FilterKind):  # an admission's own field of that name
        return AdmissionConfig(**{name: from_json(value) for name, value in content.items()})
    kind = getattr(schema, content["kind"], None) if content["kind"] in schema.__all__ else None
    if kind is None:
        raise CheckpointDamaged(f"unknown kind {content['kind']!r}: written by a newer version")
    return kind(**{name: from_json(value) for name, value in content.items() if name != "kind"})

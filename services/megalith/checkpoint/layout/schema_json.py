"""Configurations as JSON, for checkpoints: objects that name their class under "kind".

On the wire the same classes are protobuf messages (wire/codec.py). Checkpoints keep their JSON: any
reader of the files understands it, and this room knows no protobuf.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from megalith import schema
from megalith.errors import CheckpointDamaged
from megalith.schema import AdmissionConfig, FilterKind


def to_json(value: Any) -> Any:
    """What json.dumps takes, from a schema class, a tuple or mapping of them, or a plain value."""
    if dataclasses.is_dataclass(value):
        content = {"kind": type(value).__name__}
        for field in dataclasses.fields(value):
            content[field.name] = to_json(getattr(value, field.name))

        return content

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

    fields = {name: from_json(value) for name, value in content.items()}
    if content["kind"] in list(FilterKind):  # an admission's own field of that name
        return AdmissionConfig(**fields)

    name = fields.pop("kind")
    kind = getattr(schema, name, None)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise CheckpointDamaged(f"unknown kind {name!r}: written by a newer version")

    return kind(**fields)

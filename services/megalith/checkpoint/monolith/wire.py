"""The fields of one protobuf message, for messages of which there are few.

Entries, of which there are millions, are parsed by kernels/entries.py.
"""

from collections.abc import Iterator
from typing import NamedTuple

from megalith.errors import CheckpointDamaged

BYTES = 2  # the wire type of messages, texts and packed numbers
_VARINT = 0
_WIDTHS = {1: 8, 5: 4}  # of numbers with a fixed width


class Field(NamedTuple):
    """A field as it is on the wire; a varint is given as 8 bytes, the lowest first."""

    number: int
    wire: int
    value: bytes


def fields_of(message: bytes, where: str) -> Iterator[Field]:
    """CheckpointDamaged, with `where` it is, if this is no message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at, where)
        wire = tag & 7

        if wire == _VARINT:
            number, at = _varint(message, at, where)
            yield Field(tag >> 3, wire, (number % 2**64).to_bytes(8, "little"))
            continue

        if wire == BYTES:
            length, at = _varint(message, at, where)
        else:
            length = _WIDTHS.get(wire, len(message))

        if at + length > len(message):
            raise CheckpointDamaged(f"{where}: a record is no message of Monolith's")

        yield Field(tag >> 3, wire, message[at : at + length])
        at += length


def _varint(message: bytes, at: int, where: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break

        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at

    raise CheckpointDamaged(f"{where}: a record is no message of Monolith's")

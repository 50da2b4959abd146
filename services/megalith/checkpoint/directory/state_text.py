"""The text format of state files: protobuf's text format, for messages without messages inside.

    model_checkpoint_path: "model.ckpt-240"
    all_model_checkpoint_timestamps: 1790003600.0

It is read and written here because checkpoints are to be used without protobuf.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

FieldTexts = dict[str, list[str]]  # all values of each field, in the order of the file

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<mark>[:\[\],;])
    |(?P<word>[^\s,;:\[\]"'#]+)
    |(?P<unclosed>["'])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_NAMED = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}
_TO_ESCAPE = {ord("\\"): "\\\\", ord('"'): '\\"', ord("\n"): "\\n", ord("\r"): "\\r"}


class _Token(NamedTuple):
    """`line` is where it begins, counted from 1. The end of a text is a token without text."""

    kind: str
    text: str
    line: int

    def is_mark(self, marks: str) -> bool:
        return self.kind == "mark" and self.text in marks


def parse(text: str) -> FieldTexts:
    """The values of each field. A text that is none gives what could be read before its fault.

    The list of checkpoints is read by whoever has to say which one there is: an unreadable one
    names none, and its reader says what to do about it.
    """
    fields: FieldTexts = {}
    try:
        for name, _, values in _fields(text):
            fields.setdefault(name, []).extend(values)
    except ValueError:
        return fields

    return fields


def parse_whole(text: str, known: Collection[str]) -> FieldTexts:
    """The values of each field; a ValueError names the first line that is no field of `known`."""
    fields: FieldTexts = {}
    for name, line, values in _fields(text):
        if name not in known:
            raise ValueError(f"line {line}: {name} is no field; there are {', '.join(known)}")

        fields.setdefault(name, []).extend(values)

    return fields


def line(name: str, value: str) -> str:
    """A field with a number or the name of an enum's value."""
    return f"{name}: {value}\n"


def string_lines(name: str, values: Iterable[str]) -> str:
    """One line for each value of a field of strings."""
    return "".join(f'{name}: "{value.translate(_TO_ESCAPE)}"\n' for value in values)


def _tokens(text: str) -> list[_Token]:
    """Without spaces and comments; the last one is the end."""
    tokens = []
    line = 1  # counted along: a list may have thousands of lines
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, match[0], line))

        line += match[0].count("\n")

    tokens.append(_Token("end", "", line))
    return tokens


def _fields(text: str) -> Iterator[tuple[str, int, list[str]]]:
    """(name, line, values) of each field in turn; ValueError at the first that is none."""
    tokens = _tokens(text)
    position = 0
    while tokens[position].kind != "end":
        name = tokens[position]
        if name.kind != "word":
            raise _fault(name, "is where the name of a field belongs")
        if not tokens[position + 1].is_mark(":"):
            raise _fault(name, "has no : after it")

        values, position = _values(tokens, position + 2, name)
        yield name.text, name.line, values
        if tokens[position].is_mark(",;"):
            position += 1


def _values(tokens: list[_Token], position: int, name: _Token) -> tuple[list[str], int]:
    """The value of a field that begins at a token, or its list; and the position after it."""
    if not tokens[position].is_mark("["):
        value, position = _value(tokens, position, name)
        return [value], position

    values: list[str] = []
    is_open = not tokens[position + 1].is_mark("]")
    position += 1
    while is_open:
        value, position = _value(tokens, position, name)
        values.append(value)
        is_open = tokens[position].is_mark(",")
        position += is_open

    if not tokens[position].is_mark("]"):
        raise _fault(name, "has a list that is not closed by ]")

    return values, position + 1


def _value(tokens: list[_Token], position: int, name: _Token) -> tuple[str, int]:
    """A word, or strings in a row, which are one; and the position after it."""
    first = tokens[position]
    if first.kind == "word":
        return first.text, position + 1
    if first.kind == "unclosed":
        raise _fault(name, "has a text that is not closed by a quote")
    if first.kind != "string":
        raise _fault(name, "has no value")

    joined = ""
    line = first.line
    while tokens[position].kind == "string":
        # Protobuf joins these too. Who writes one path below another means two, and neither the
        # one nor the other would be what is read.
        if tokens[position].line != line:
            raise _fault(tokens[position], "is a text below another; name its field again")

        joined += _unescaped(tokens[position].text)
        position += 1

    return joined, position


def _fault(token: _Token, what: str) -> ValueError:
    return ValueError(f"line {token.line}: {token.text} {what}")


def _unescaped(quoted: str) -> str:
    def plain(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code[:1] == b"x" and len(code) > 1:
            return bytes([int(code[1:], 16)])
        if code.isdigit():
            return bytes([int(code, 8) & 0xFF])

        return _NAMED.get(code, code)

    inside = quoted[1:-1].encode(errors="surrogateescape")
    return _ESCAPE.sub(plain, inside).decode(errors="replace")

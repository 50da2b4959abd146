"""The text format of state files: protobuf's text format, for messages without messages inside.

    model_checkpoint_path: "model.ckpt-240"
    all_model_checkpoint_timestamps: 1790003600.0

It is read and written here because checkpoints are to be used without protobuf.
"""

import re
from collections.abc import Iterable, Iterator

Fields = dict[str, list[str]]  # all values of each field, in the order of the file

_TOKEN = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<mark>[:\[\]])
    |(?P<word>[^\s,;:\[\]"'#]+)""",
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


def parse(text: str) -> Fields:
    """The values of each field. A text that is none gives what could be read before its fault.

    State files are read by whoever has to say which checkpoint there is: an unreadable one names
    none, and its reader says what to do about it.
    """
    fields: Fields = {}
    tokens = list(_tokens(text))
    position = 0

    while position + 1 < len(tokens):
        kind, name = tokens[position]
        if kind != "word" or tokens[position + 1] != ("mark", ":"):
            break

        values, position = _values(tokens, position + 2)
        if not values:
            break

        fields.setdefault(name, []).extend(values)

    return fields


def line(name: str, value: str) -> str:
    """A field with a number or the name of an enum's value."""
    return f"{name}: {value}\n"


def string_lines(name: str, values: Iterable[str]) -> str:
    """One line for each value of a field of strings."""
    return "".join(f'{name}: "{value.translate(_TO_ESCAPE)}"\n' for value in values)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Without spaces, separators and comments; they end at the first character that fits none."""
    position = 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        kind = match.lastgroup or ""
        if kind != "space":
            yield kind, match[0]


def _values(tokens: list[tuple[str, str]], position: int) -> tuple[list[str], int]:
    """The values that begin at a token, and the position after them; strings in a row are one."""
    kind, text = tokens[position] if position < len(tokens) else ("", "")
    if kind == "word":
        return [text], position + 1

    if kind == "string":
        joined = ""
        while position < len(tokens) and tokens[position][0] == "string":
            joined += _unescaped(tokens[position][1])
            position += 1

        return [joined], position

    values: list[str] = []
    if text != "[":
        return values, position

    position += 1
    while position < len(tokens) and tokens[position][0] in ("word", "string"):
        # The commas between strings of a list are no tokens here: each is a value of its own.
        kind, text = tokens[position]
        values.append(_unescaped(text) if kind == "string" else text)
        position += 1

    return values, position + 1  # after the bracket


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

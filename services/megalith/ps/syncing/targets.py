"""Which serving processes a ps pushes to, and as which model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from megalith.errors import InvalidRequest, InvalidSetting
from megalith.wire import addresses

_SHARD_PREFIX = "ps_"


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """A serving process, and the shard of the serving side that it is sent: model `ps_<shard>`."""

    address: str
    shard: int

    def __str__(self) -> str:
        return f"{_SHARD_PREFIX}{self.shard}@{self.address}"


def parse(text: str, source: str, index: int, num_shards: int) -> list[Target]:
    """The targets of a list with commas or lines, sorted, each of them once.

    `host:port` gets the shard of this ps, or every shard if ids are dealt to `num_shards`;
    `ps_1@host:port` gets shard 1 only. A line that begins with # is a comment. InvalidSetting names
    the `source` and the entry.
    """
    found: set[Target] = set()
    for entry in _entries(text):
        found.update(_targets_of(entry, source, index, num_shards))

    return sorted(found)


def read(path: str, index: int, num_shards: int) -> list[Target]:
    """The targets in a file; InvalidSetting if it cannot be read.

    Neither can an empty one: it is probably being written. A comment alone says that there are no
    targets.
    """
    source = f"--sync-targets-file={path}"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{source}: {error}") from None

    if not text:
        raise InvalidSetting(f"{source} is empty; write a line with # if there are no targets")

    return parse(text, source, index, num_shards)


def _entries(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.lstrip().startswith("#"):
            yield from (entry.strip() for entry in line.split(",") if entry.strip())


def _targets_of(entry: str, source: str, index: int, num_shards: int) -> Iterator[Target]:
    shard, at, address = entry.rpartition("@")
    try:
        addresses.split(address)
    except InvalidRequest:
        raise InvalidSetting(
            f"{source}: {entry[:80]!r} is no target; expected host:port, or ps_1@host:port"
        ) from None

    for number in _shards_of(shard if at else "", entry, source, index, num_shards):
        yield Target(address, number)


def _shards_of(shard: str, entry: str, source: str, index: int, num_shards: int) -> Sequence[int]:
    if not shard:
        return range(num_shards) if num_shards else (index,)

    number = shard.removeprefix(_SHARD_PREFIX)
    is_shard = shard.startswith(_SHARD_PREFIX) and number.isascii() and number.isdecimal()

    if not is_shard:
        raise InvalidSetting(f"{source}: {entry[:80]!r}: expected ps_ and a number before the @")

    if int(number) >= num_shards:
        raise InvalidSetting(
            f"{source}: {entry[:80]!r}: the serving side has {num_shards} shards; "
            "--sync-num-ps says how many"
        )

    return (int(number),)

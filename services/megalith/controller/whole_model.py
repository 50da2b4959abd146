"""Whether what the ps have written of a model is all of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from megalith.runtime.manifest import ShardFile
from megalith.wire.variable_parts import name_of


@dataclass(frozen=True, slots=True)
class ShardAnswer:
    """What a ps says of its part of a save; see ShardSaved in coordination.proto."""

    files: list[ShardFile]
    parts: tuple[str, ...] = ()
    error: str = ""
    pushes: int = 0


def missing_in(
    shards: Mapping[int, ShardAnswer], index_of: Callable[[int], int | None]
) -> list[str]:
    """What is missing, for people: every table belongs on every ps, and every part of a variable on some ps.

    `shards` are by session; `index_of` tells whose it is.
    """
    return [*_missing_tables(shards, index_of), *_missing_parts(shards.values())]


def _missing_tables(
    shards: Mapping[int, ShardAnswer], index_of: Callable[[int], int | None]
) -> list[str]:
    held = {
        session: {file.table for file in shard.files if file.kind == "table"}
        for session, shard in shards.items()
    }
    said = []
    for table in sorted(set().union(*held.values())):
        without = [session for session, tables in held.items() if table not in tables]
        if without:
            said.append(
                f"table {table!r} is not on ps {[index_of(session) for session in without]}"
            )
    return said


def _missing_parts(shards: Iterable[ShardAnswer]) -> list[str]:
    found: dict[tuple[str, int], set[int]] = {}
    for shard in shards:
        for key in shard.parts:
            index, _, of = key.rpartition("@")[2].partition("/")
            found.setdefault((name_of(key), int(of)), set()).add(int(index))
    said = []
    for (name, count), parts in sorted(found.items()):
        missing = sorted(set(range(count)) - parts)
        if missing:
            said.append(f"parts {missing} of {count} of variable {name!r} are on no ps")
    return said

"""Whether what the ps have written of a model is all of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.wire.routing import ps_names


@dataclass(frozen=True, slots=True)
class ShardSaved:
    """A ps is done with its part of a save; see ShardSaved in coordination.proto."""

    save_id: str
    files: list[ShardFile]
    parts: tuple[str, ...] = ()
    error: str = ""
    pushes: int = 0
    changes_forgotten: bool = False
    changes_not_noted: bool = False
    layouts: Mapping[str, str] = field(default_factory=dict)


def missing_in(
    shards: Mapping[int, ShardSaved], index_of: Callable[[int], int | None]
) -> list[str]:
    """What is missing, for people.

    Every table belongs on every ps, in one layout, and every part of a variable on some ps.
    `shards` are by session; `index_of` tells whose it is.
    """
    return [
        *_missing_tables(shards, index_of),
        *_mixed_layouts(shards, index_of),
        *_missing_parts(shards.values()),
    ]


def _missing_tables(
    shards: Mapping[int, ShardSaved], index_of: Callable[[int], int | None]
) -> list[str]:
    held: dict[int, set[str]] = {}
    for session, shard in shards.items():
        held[session] = {file.table for file in shard.files if file.kind == FileKind.TABLE}

    all_tables = set().union(*held.values())
    said = []

    for table in sorted(all_tables):
        without = [session for session, tables in held.items() if table not in tables]
        if without:
            indices = [index_of(session) for session in without]
            names = ps_names(index for index in indices if index is not None)
            said.append(f"table {table!r} is not on {names or 'a ps that has left since'}")

    return said


def _mixed_layouts(
    shards: Mapping[int, ShardSaved], index_of: Callable[[int], int | None]
) -> list[str]:
    """No ps could restore such a table: its files do not fit together."""
    holders: dict[str, dict[str, list[int]]] = {}
    for session, shard in shards.items():
        for table, layout in shard.layouts.items():
            by_layout = holders.setdefault(table, {})
            by_layout.setdefault(layout, []).append(session)

    said = []

    for table, by_layout in sorted(holders.items()):
        if len(by_layout) == 1:
            continue

        layouts = []
        for layout, sessions in by_layout.items():
            indices = [index_of(session) for session in sessions]
            names = ps_names(sorted(index for index in indices if index is not None))
            layouts.append(f"{layout} on {names or 'a ps that has left since'}")

        said.append(
            f"table {table!r} has rows {', '.join(sorted(layouts))}; "
            "create it with allow_new_layout=True"
        )

    return said


def _missing_parts(shards: Iterable[ShardSaved]) -> list[str]:
    found: dict[tuple[str, int], set[int]] = {}
    for shard in shards:
        for part_name in shard.parts:
            name, _, numbers = part_name.rpartition("@")
            index, _, of = numbers.partition("/")
            whole = (name, int(of))
            parts = found.setdefault(whole, set())
            parts.add(int(index))

    said = []

    for (name, count), parts in sorted(found.items()):
        missing = [number for number in range(count) if number not in parts]
        if missing:
            said.append(f"parts {missing} of {count} of variable {name!r} are on no ps")

    return said

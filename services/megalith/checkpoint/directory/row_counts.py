"""The file `ckpt.info-<step>` of a model directory: how many rows each table has in a checkpoint.

It is Monolith's, in its text format:

    feature_counts {
      key: "user"
      value: 391125
    }
"""

from collections import Counter

from megalith.checkpoint.directory import state_text
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location


def path_of(model_dir: Location, step: int) -> Location:
    return model_dir / f"ckpt.info-{step}"


def write(model_dir: Location, content: Manifest) -> None:
    """Say what a checkpoint has; a later one of the same step takes the place of an earlier one."""
    counts: Counter[str] = Counter()
    for file in content.files:
        if file.kind == FileKind.TABLE:
            counts[file.table] += file.rows

    text = "".join(_entry(table, counts[table]) for table in sorted(counts))
    path = path_of(model_dir, content.step)
    stored.write(path, text.encode())


def _entry(table: str, rows: int) -> str:
    key = state_text.string_lines("key", [table])
    value = state_text.line("value", str(rows))
    return f"feature_counts {{\n  {key}  {value}}}\n"

"""Writing a model that can be served without its job."""

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalith.checkpoint.directory.increments import Chain
from megalith.checkpoint.exported import row_files, versions
from megalith.checkpoint.exported.about import ExportedModel
from megalith.checkpoint.files import variables
from megalith.checkpoint.holder import ShardHolder
from megalith.checkpoint.storage.location import name_of

_READABLE = 60  # characters of a table's name in the name of its file


@dataclass(frozen=True, slots=True)
class Export:
    """What was written, and where. `not_finite` rows of each table were left out."""

    directory: Path
    model: ExportedModel
    not_finite: dict[str, int]


def export(holder: ShardHolder, chain: Chain, base: Path, beside: Sequence[Path] = ()) -> Export:
    """Write what `holder` restored from `chain` as the next version below `base`.

    Files of `beside` are copied into it. The folder exists whole or not at all; what an export left
    that was killed is removed.
    """
    base.mkdir(parents=True, exist_ok=True)
    with versions.begun(base) as work:
        written = [
            row_files.write(table, work, _name(number, table.config.name))
            for number, table in enumerate(holder.tables())
        ]

        held = [_without_state(row) for row in variables.copies_of(holder.variables())]
        files = [each.file for each in written]
        files.append(variables.write(held, work, "variables.arrow"))

        for path in beside:
            shutil.copyfile(path, work / path.name)

        now_s = time.time()
        model = ExportedModel(
            version=int(now_s),
            checkpoint=name_of(str(chain.directory)),
            increments=chain.number,
            step=chain.last.step,
            saved_at_s=chain.last.saved_at_s,
            exported_at_s=now_s,
            files=tuple(files),
        )

        directory, model = versions.publish(work, base, model)

    return Export(directory, model, {each.file.table: each.not_finite for each in written})


def _name(number: int, table: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", table[:_READABLE])
    return f"table-{number:04}-{readable}.arrow"


def _without_state(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "state": {}}

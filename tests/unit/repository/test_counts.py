"""`1 file`, `2 files`: what commands print of a count goes through `counted`."""

import re
from pathlib import Path

import megalith.cli

_NOUNS = (
    "batches|blocks|checkpoints|examples|features|files|folders|increments|parts|predictions"
    "|processes|ranks|replicas|restarts|rows|steps|tables|times|tries|variables|workers"
)
_COUNT = re.compile(rf"\{{[^{{}}]+\}} ({_NOUNS})\b(?!/s)")
_OTHERS = (
    "examples/s",
    "its {num_parts} parts",  # of which one is missing: there are two or more
    "{job.num_workers} workers, batches of",  # the name of an input, which is compared
)


def test_no_command_puts_a_plural_behind_a_number_that_may_be_one():
    folder = Path(megalith.cli.__file__).parent
    found = []
    for path in sorted(folder.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            is_other = any(other in line for other in _OTHERS)
            if _COUNT.search(line) and "logger." not in line and not is_other:
                found.append(f"{path.relative_to(folder)}:{number}: {line.strip()}")

    assert found == []

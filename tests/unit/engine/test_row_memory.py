"""docs/sdk.md says how much memory a row takes."""

import re
from pathlib import Path

import numpy as np
import pytest

import megalith.schema as schema
from megalith.engine.table.embedding_table import EmbeddingTable

PAGE = (Path(__file__).parents[3] / "docs/sdk.md").read_text()
ROWS = re.findall(r"^\| ((?:`\w+`,? ?)+)\| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
CASES = [
    (name, int(kept), int(size)) for names, kept, size in ROWS for name in re.findall(r"\w+", names)
]


def test_the_page_has_a_table_of_sizes():
    assert len(CASES) >= 6


@pytest.mark.parametrize(("name", "kept", "size"), CASES)
def test_a_row_takes_the_bytes_that_the_page_says(name, kept, size):
    assert size == 4 * (16 + kept) + 27
    optimizer = getattr(schema, name)()
    table = EmbeddingTable(schema.TableConfig("t", (schema.Segment(16, optimizer=optimizer),)))
    ids = np.random.default_rng(1).permutation(10**6)[:300_000]
    table.apply_gradients(ids, np.ones((ids.size, 16), np.float32))
    # The index has just grown, or is about to: 21 to 34 bytes an entry.
    assert table.nbytes / ids.size == pytest.approx(size, abs=7)

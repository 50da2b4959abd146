"""docs/operating.md lists the metrics that services make, and no others."""

import ast
import re

from megalith.schema import table_counts
from support.pages import ROOT

PAGE = (ROOT / "docs/operating.md").read_text()
MAKERS = {"gauge", "counter", "Gauge", "Counter", "Histogram", "Summary"}
# Those of tables stand in a dict, and are named after what is counted.
OF_TABLES = {"megalith_rows", "megalith_table_bytes"}


def made():
    """First arguments of calls that make a metric, read without a server."""
    names = set()
    for path in ROOT.glob("services/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue

            maker = ast.unparse(node.func).rpartition(".")[2]
            first = node.args[0]
            if maker in MAKERS and isinstance(first, ast.Constant):
                names.add(str(first.value))

    return {name for name in names if name.startswith("megalith_")}


def test_the_page_lists_every_metric_that_a_service_makes_and_no_other():
    _, _, section = PAGE.partition("| process | metric | meaning |")
    table, _, _ = section.partition("\n\n")
    listed = re.findall(r"`(megalith_\w+)`", table)
    of_tables = OF_TABLES | {f"megalith_rows_{name}_total" for name in table_counts.HELP}
    assert len(listed) > 30
    assert len(set(listed)) == len(listed)
    assert set(listed) == made() | of_tables

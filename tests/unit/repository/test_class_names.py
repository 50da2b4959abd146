import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_no_class_name_has_two_homes():
    """Whoever reads or searches for a name finds one thing. Generated code is left out."""
    homes = defaultdict(list)
    for root in ("services", "client"):
        for path in sorted((ROOT / root).rglob("*.py")):
            if "protos" in path.parts:
                continue

            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    homes[node.name].append(str(path.relative_to(ROOT)))

    assert len(homes) > 100
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}

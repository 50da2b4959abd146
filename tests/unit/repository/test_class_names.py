import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]


# A name for a type, such as `Method = Callable[...]`; constants are written in capitals.
ALIAS = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*|[A-Z]\w*[0-9]\w*|B_co")


def modules():
    for root in ("services", "client"):
        for path in sorted((ROOT / root).rglob("*.py")):
            if "protos" not in path.parts:
                yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def aliases(tree):
    """(name, what it stands for) of each module-level name for a type."""
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue

        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        is_of_types = isinstance(node.value, ast.Subscript | ast.BinOp | ast.Call | ast.Name)
        if isinstance(target, ast.Name) and ALIAS.fullmatch(target.id) and is_of_types:
            yield target.id, ast.unparse(node.value)


def test_no_name_of_a_type_has_two_meanings():
    """Two modules may each say what `F32` is, if they say the same. A class is one meaning."""
    meanings = defaultdict(lambda: defaultdict(list))
    for path, tree in modules():
        for name, meaning in aliases(tree):
            meanings[name][meaning].append(path)

        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                meanings[node.name][f"class of {path}"].append(path)

    assert len(meanings) > 500
    several = {name: dict(homes) for name, homes in meanings.items() if len(homes) > 1}
    assert several == {}


def test_no_class_name_has_two_homes():
    """Whoever reads or searches for a name finds one thing. Generated code is left out."""
    homes = defaultdict(list)
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path)

    assert len(homes) > 100
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}

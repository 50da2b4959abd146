"""docs/goldens.md lists the goldens that tests hold, and which tests hold them."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "goldens.md"
REASONS = ROOT / "docs" / "coming-from-monolith.md"
UNHELD = "## Numbers without a test"
# What Monolith's code promises, and none of its numbered tests asserts.
EXTRAS = {
    "Extra.action_file",
    "Extra.barrier",
    "Extra.expire",
    "Extra.iterator",
    "Extra.multi_table",
    "Extra.save_with_barrier",
}


def golden_ids(function):
    """The ids in `@pytest.mark.golden(...)` above a function, read without importing its module."""
    found = []
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.golden":
            found += [ast.literal_eval(argument) for argument in decorator.args]
    return found


def marked():
    """Names of the tests that hold a golden, by golden, from the markers."""
    tests_by_golden = defaultdict(list)
    for path in ROOT.glob("tests/**/test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                for golden in golden_ids(node):
                    tests_by_golden[golden].append(node.name)
    return {golden: sorted(tests) for golden, tests in tests_by_golden.items()}


def listed():
    """The same from the page: rows of (golden, what it asserts, where it comes from, tests)."""
    held, _, _ = PAGE.read_text().partition(UNHELD)
    rows = []
    for line in held.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[0] not in ("golden", "---"):
            rows.append(cells)
    return rows


def test_the_page_lists_the_goldens_that_tests_hold_and_by_which_tests():
    on_page = {golden: re.findall(r"`(test_\w+)`", tests) for golden, _, _, tests in listed()}
    assert on_page == marked()


def test_every_golden_is_listed_once_with_what_it_asserts_and_where_it_comes_from():
    rows = listed()
    assert all(all(cells) for cells in rows)
    count_by_golden = Counter(golden for golden, _, _, _ in rows)
    assert [golden for golden, count in count_by_golden.items() if count > 1] == []


def test_a_name_of_a_test_that_holds_a_golden_names_one_test():
    """The page gives no file, so that a test may move."""
    functions = Counter()
    for path in ROOT.glob("tests/**/test_*.py"):
        functions.update(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    holders = {test for tests in marked().values() for test in tests}
    assert sorted(test for test in holders if functions[test] > 1) == []


def test_no_test_is_named_by_the_number_of_a_golden():
    named = []
    for path in ROOT.glob("tests/**/test_*.py"):
        named += re.findall(r"^def (test_(?:\w+_)?g\d+_\w+)", path.read_text(), re.MULTILINE)
    assert named == []


def reasoned():
    """Goldens that have no test, from the page that says why. (in part): a test holds the rest."""
    _, _, section = REASONS.read_text().partition("## Goldens without a test")
    section, _, _ = section.partition("\n## ")
    rows = [
        line.split("|")[1:-1]
        for line in section.splitlines()
        if line.startswith(("| G", "| Extra"))
    ]
    assert all(cell.strip() for row in rows for cell in row)
    return [name.strip() for row in rows for name in row[0].split(",")]


def test_each_of_the_33_goldens_and_of_those_without_a_number_has_a_test_or_a_reason():
    """And not both, unless a test holds a part of it."""
    held = {golden for golden in marked() if re.fullmatch(r"G\d+|Extra\.\w+", golden)}
    reasons = reasoned()
    partly = {name.removesuffix(" (in part)") for name in reasons if name.endswith(" (in part)")}
    wholly = {name for name in reasons if not name.endswith(" (in part)")}
    assert partly <= held
    assert held.isdisjoint(wholly)
    assert held | wholly == {f"G{number}" for number in range(1, 34)} | EXTRAS

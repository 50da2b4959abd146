"""docs/coming-from-monolith.md names modules, metrics, files and settings that exist."""

import dataclasses
import re
import subprocess

import pytest

import megalith.client as mg
from megalith.runner.config import RunnerConfig
from megalith.runner.monolith_settings import LEFT_OUT, RENAMED
from support.pages import ROOT

PAGE = (ROOT / "docs/coming-from-monolith.md").read_text()


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


def cells(title, column):
    """A column of the tables of a section, without their heads."""
    rows = [line.split("|")[1:-1] for line in section(title).splitlines() if line[:1] == "|"]
    return [row[column] for row in rows if not set(row[0]) <= set("- ")][1:]


def sources():
    paths = ["services", "client/megalith", "protos"]
    found = subprocess.run(
        ["git", "grep", "-h", "", "--", *paths], cwd=ROOT, capture_output=True, text=True
    )
    return found.stdout


def test_every_path_of_ours_exists():
    paths = re.findall(r"`((?:services|client|protos)/[^`]+)`", PAGE)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_name_of_the_sdk_exists():
    names = re.findall(r"`mg\.(\w+)", PAGE)
    assert names
    assert [name for name in names if not hasattr(mg, name)] == []


def test_every_metric_is_one_that_a_service_makes():
    text = sources()
    named = [name for cell in cells("Metrics", 0) for name in re.findall(r"`([\w.]+)`", cell)]
    made = [name for name in named if name != "monolith.containers"]
    assert len(made) > 10
    assert [name for name in made if f'"{name}"' not in text] == []


@pytest.mark.parametrize(
    "name", ["controller_server_addr.txt", "monolith_action", "ps_cluster_dir", "manifest.json"]
)
def test_the_files_that_keep_their_names_are_written_by_a_service(name):
    assert f"`{name}" in PAGE or f"/{name}" in PAGE
    assert f'"{name}"' in sources()


def test_every_variable_that_is_read_as_in_monolith_is_read():
    paragraph = re.search(r"These variables of the environment(.*?)\n\n", PAGE, re.DOTALL)[1]
    names = re.findall(r"`([A-Z][A-Z_0-9]+)[*`]", paragraph)
    assert len(names) > 12
    text = sources()
    assert [name for name in names if name not in text] == []


def test_every_field_of_the_configuration_is_known_here_or_in_the_list_of_settings():
    ours = {field.name for field in dataclasses.fields(RunnerConfig)}
    named = [name for cell in cells("Configuration", 0) for name in re.findall(r"`(\w+)`", cell)]
    assert len(named) > 10
    assert [name for name in named if name not in ours | set(RENAMED) | set(LEFT_OUT)] == []
    flags = [
        flag for cell in cells("Configuration", 1) for flag in re.findall(r"`--([\w-]+)", cell)
    ]
    assert [flag for flag in flags if flag.replace("-", "_") not in ours] == []


def test_what_is_called_not_there_yet_is_not_there():
    """Whoever builds one of these takes it off the list."""
    there = {field.name for field in dataclasses.fields(RunnerConfig)} | set(RENAMED)
    named = re.findall(r"`(\w+)`", section("Not there yet"))
    assert len(named) > 5
    assert [name for name in named if name in there] == []
    known = (*LEFT_OUT, "evaluate", "on_barrier")
    assert [name for name in named if name not in known] == []

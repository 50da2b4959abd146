"""What the README says of settings, ports and commands is what the code has."""

import dataclasses
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from megalith.appmaster.config import AppMasterConfig
from megalith.controller.config import ControllerConfig
from megalith.ps.config import PsConfig
from megalith.runtime.discovery.settings import DiscoverySettings
from megalith.runtime.membership import MembershipSettings
from megalith.runtime.server import ServerSettings
from megalith.runtime.settings import leaves
from megalith.worker.config import WorkerConfig

README = (Path(__file__).parents[3] / "README.md").read_text()
SERVICES = {
    "controller": ControllerConfig,
    "ps": PsConfig,
    "worker": WorkerConfig,
    "appmaster": AppMasterConfig,
}
SHARED = {
    "How every service listens": ServerSettings,
    "How ps and workers join": MembershipSettings,
    "How processes find each other": DiscoverySettings,
}


def rows(leaves_of):
    for leaf in leaves_of:
        default = "required" if leaf.default is dataclasses.MISSING else f"`{leaf.default!r}`"
        yield f"| `{leaf.flag}` | {default} | {leaf.help} |"


def own_leaves(config):
    """Settings of the service beyond the shared groups that it has, and those where it differs from them."""
    nested = {
        kind
        for hint in get_type_hints(config).values()
        if dataclasses.is_dataclass(hint)
        for kind in hint.__mro__
    }
    shared = {row for group in SHARED.values() if group in nested for row in rows(leaves(group))}
    return [row for row in rows(leaves(config)) if row not in shared]


def section(title):
    match = re.search(
        rf"^\*\*{re.escape(title)}\*\*.*?\n\n(\|.*?\n)(?:\n|\Z)", README, re.DOTALL | re.MULTILINE
    )
    assert match, f"README has no table under **{title}**"
    return match.group(1).splitlines()[2:]


@pytest.mark.parametrize("title", SHARED)
def test_the_shared_settings_are_those_of_the_dataclasses(title):
    assert section(title) == list(rows(leaves(SHARED[title])))


@pytest.mark.parametrize("service", SERVICES)
def test_the_settings_of_each_service_are_those_of_its_dataclass(service):
    assert section(f"megalith {service}") == own_leaves(SERVICES[service])


def test_the_ports_are_the_defaults():
    for service, config in SERVICES.items():
        default = {leaf.name: leaf.default for leaf in leaves(config)}
        port, metrics = (str(default[name] or "any free") for name in ("port", "metrics_port"))
        assert re.search(rf"^\| {service} \|.*\| {port} \| {metrics} \|", README, re.MULTILINE), (
            service
        )


def test_every_make_target_it_names_exists():
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z-]+)`?", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target

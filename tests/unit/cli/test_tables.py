"""`megalith ctl tables` on a narrow and on a wide terminal."""

import pytest
from rich.console import Console

from megalith.cli.ctl.look import tables
from megalith.cli.screen import columns
from megalith.client import TableStats

STATS = {
    "4a67a0256dacbca594916cce369e6d13": TableStats(
        rows=357_721_000,
        bytes=32_570_260_000,
        created=400_000_000,
        refused=12,
        max_rows=789_891_200,
        features=("item", "user", "campaign_of_the_season"),
        over_budget_on=(0, 1),
    ),
    "hour": TableStats(rows=24, bytes=604_928, created=24, missing_on=(1,), features=("hour",)),
    "mine": TableStats(rows=1, bytes=1, created=1),
}


@pytest.fixture
def show(monkeypatch, capsys):
    def on(width):
        monkeypatch.setattr(
            columns, "Console", lambda: Console(width=width, force_terminal=True, color_system=None)
        )
        tables._show_tables(STATS)
        return capsys.readouterr().out

    return on


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal_with_the_figures_that_are_not_0(show, width):
    text = show(width)
    view, _, _ = text.partition("\ntable ")
    assert max(map(len, view.splitlines())) <= width
    assert "…" not in text
    for figure in ("357,721,000", "400,000,000", "32.57 GB", "12"):
        assert figure in text


def test_a_table_of_features_is_called_by_them(show):
    text = show(160)
    assert "4a67a025" not in text
    assert "item, user, campaign_of_the_season" in text
    assert " hour " in text
    assert " mine " in text


def test_what_is_over_budget_or_missing_is_said_with_the_servers(show):
    text = " ".join(show(120).split())
    assert "season is over its memory budget on ps-0, ps-1: new ids are refused there" in text
    assert "table hour is missing on ps-1, replaced since it was created" in text

import json
import subprocess
import sys

import pytest

from support import killed_saves


@pytest.fixture
def deaths(tmp_path, request):
    """What was found after deaths of a save, in order.

    The last one is the save that nobody killed.
    """
    command = [sys.executable, killed_saves.__file__, request.param, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) > 8
    assert [death["killed"] for death in found] == [True] * (len(found) - 1) + [False]
    return found


def assert_each_start_works(deaths):
    for death in deaths:
        assert "error" not in death
        assert death["again"] == death["started"]
        assert death["newest"] == death["saved"]


@pytest.mark.parametrize("deaths", ["first"], indirect=True)
def test_a_start_after_the_first_save_was_killed_at_any_line_takes_what_was_complete(deaths):
    assert_each_start_works(deaths)
    assert [death["started"] for death in deaths] == [
        "".join(death["complete"]) for death in deaths
    ]
    assert {death["started"] for death in deaths} == {"", "model.ckpt-12"}


@pytest.mark.parametrize("deaths", ["second"], indirect=True)
def test_a_start_after_a_later_save_was_killed_at_any_line_takes_what_was_listed(deaths):
    assert_each_start_works(deaths)
    started = [death["started"] for death in deaths]
    is_new = [name == "model.ckpt-r1-12" for name in started]
    assert sorted(is_new) == is_new
    assert set(started) == {"model.ckpt-12", "model.ckpt-r1-12"}


@pytest.mark.parametrize("deaths", ["cannot be listed"], indirect=True)
def test_a_start_after_a_save_that_failed_was_killed_while_it_was_removed_just_works(deaths):
    assert_each_start_works(deaths)
    assert deaths[-1]["started"] == ""

import pytest

from megalith.cli.ctl.which_job import first_named, named_in

ENVIRON = {"MEGALITH_CTL_CONTROLLER": "env:1"}


@pytest.mark.parametrize(
    ("command", "group", "environ", "expected"),
    [
        (("", ""), ("", ""), {}, None),
        (("", ""), ("", ""), {"MEGALITH_CTL_APPMASTER": "other:1"}, None),
        (("", ""), ("", ""), ENVIRON, ("env:1", None)),
        (("", ""), ("", ""), {"MEGALITH_CTL_MODEL_DIR": "d"}, (None, "d")),
        (("", ""), ("flag:2", ""), ENVIRON, ("flag:2", None)),
        (("", ""), ("", "dir"), ENVIRON, (None, "dir")),
        (("", "mine"), ("flag:2", ""), ENVIRON, (None, "mine")),
        (("mine:3", ""), ("", "dir"), ENVIRON, ("mine:3", None)),
    ],
)
def test_the_nearest_flag_wins_over_the_environment(command, group, environ, expected):
    assert first_named(command, group, named_in(environ, "controller")) == expected

"""Which collective library is chosen, and what is said if it is not there."""

import pytest

from megalith.collective.choose import COLLECTIVES, chosen, open_engine
from megalith.collective.engine import OneRank
from megalith.collective.horovod import module_name
from megalith.errors import InvalidSetting


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "one"),
        ({"OMPI_COMM_WORLD_SIZE": "1", "WORLD_SIZE": "1"}, "one"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpi"),
        ({"WORLD_SIZE": "2"}, "gloo"),
        ({"OMPI_COMM_WORLD_SIZE": "2", "WORLD_SIZE": "2"}, "mpi"),
        ({"HOROVOD_SIZE": "2", "WORLD_SIZE": "2"}, "horovod"),
        ({"HOROVOD_SIZE": "2", "MONOLITH_WITH_BYTEPS": "1"}, "byteps"),
        ({"MONOLITH_WITH_BYTEPS": "1"}, "byteps"),
        ({"MONOLITH_WITH_BYTEPS": "0"}, "one"),
    ],
)
def test_the_launcher_decides_unless_a_library_is_named(environ, expected):
    assert chosen("auto", environ) == expected
    for name in COLLECTIVES[1:]:
        assert chosen(name, environ) == name


def test_byteps_is_chosen_if_its_variable_is_not_zero():
    assert module_name({}) == "horovod.tensorflow"
    assert module_name({"MONOLITH_WITH_BYTEPS": "0"}) == "horovod.tensorflow"
    assert module_name({"MONOLITH_WITH_BYTEPS": "1"}) == "byteps.tensorflow"


def test_one_rank_needs_no_library():
    assert isinstance(open_engine("auto", {}, 1.0), OneRank)


@pytest.mark.parametrize("name", ["horovod", "byteps"])
def test_a_library_that_is_missing_is_named(name):
    with pytest.raises(InvalidSetting, match=f"--collective={name}: {name}.tensorflow cannot be"):
        open_engine(name, {}, 1.0)

"""What a replica serves while ps come, go and split their variables anew."""

import numpy as np
import pytest

from megalith.errors import NotReady, UnknownTable, UnknownVariable
from megalith.replica.copies.model import ServedModel
from megalith.schema import FixedR8, Segment, TableConfig


def table_of(name="t", dim=2, **segment):
    return TableConfig(name, (Segment(dim, **segment),))


def parts(name, *values):
    count = len(values)
    return {f"{name}@{index}/{count}": np.array(value) for index, value in enumerate(values)}


def test_a_table_that_goes_leaves_the_variable_of_the_same_name():
    model = ServedModel(1)
    model.begin_table(table_of("w"))
    model.set_variables({"w": np.ones(3)})
    model.keep_only(0, ["w"], ["w"])
    model.keep_only(0, [], ["w"])
    np.testing.assert_array_equal(model.variable("w"), np.ones(3))
    assert model.tables == []


def test_a_variable_that_goes_leaves_the_table_that_is_called_like_it():
    model = ServedModel(1)
    model.begin_table(table_of("variable w"))
    model.set_variables({"w": np.ones(3)})
    model.keep_only(0, ["variable w"], ["w"])
    model.keep_only(0, ["variable w"], [])
    assert [served.table.config.name for served in model.tables] == ["variable w"]
    with pytest.raises(UnknownVariable):
        model.variable("w")


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (3, 1)])
def test_parts_of_two_splits_are_never_mixed(before, after):
    model = ServedModel(before)
    old = parts("v", *([index] for index in range(before)))
    for index, part in enumerate(old):
        model.set_variables({part: old[part]})
        model.keep_only(index, [], [part])
    np.testing.assert_array_equal(model.variable("v"), np.arange(before))

    model.reshape(after)
    new = parts("v", *([10 + index] for index in range(after)))
    if after == 1:
        new = {"v": np.array([10])}
    for index, part in enumerate(new):
        if index:
            with pytest.raises(NotReady, match="parts are here"):
                model.variable("v")
        model.set_variables({part: new[part]})
        model.keep_only(index, [], [part])

    np.testing.assert_array_equal(model.variable("v"), 10 + np.arange(after))


def test_with_fewer_ps_what_only_the_others_had_goes():
    model = ServedModel(2)
    table = model.begin_table(table_of("old"))
    for index in range(2):
        model.end_snapshot(table, index)
        model.keep_only(index, ["old"], [])
    model.reshape(1)
    model.keep_only(0, [], [])
    with pytest.raises(UnknownTable):
        model.lookup("old", np.array([1]))


def test_what_a_ps_sent_in_a_version_that_broke_off_goes_with_its_replacement():
    model = ServedModel(2)
    first = model.begin_table(table_of("old"), 0)
    model.set_variables({"old": np.zeros(1)}, 0)
    for index in range(2):
        model.end_snapshot(first, index)
        model.keep_only(index, ["old"], ["old"])

    model.begin_table(table_of("new"), 0)  # by a ps that dies before its first version is over
    model.set_variables({"new": np.ones(1)}, 0)
    model.keep_only(1, ["old"], ["old"])
    model.keep_only(0, ["old"], ["old"])  # by the one after it
    assert model.variables == ["old"]
    assert [served.table.config.name for served in model.tables] == ["old"]


def test_what_a_ps_is_sending_stays_when_another_one_that_had_it_lets_it_go():
    """So it is when a job comes back: a variable is on another ps then, and is sent once."""
    model = ServedModel(2)
    model.set_variables({"v": np.zeros(1)}, 1)
    model.keep_only(0, [], [])
    model.keep_only(1, [], ["v"])
    model.reshape(2, is_another_run=True)

    model.set_variables({"v": np.ones(1)}, 0)
    model.keep_only(1, [], [])
    model.keep_only(0, [], ["v"])
    np.testing.assert_array_equal(model.variable("v"), np.ones(1))
    model.keep_only(0, [], [])
    assert model.variables == []


def test_a_table_is_served_once_every_ps_has_sent_it():
    model = ServedModel(2)
    table = model.begin_table(table_of())
    model.end_snapshot(table, 1)
    with pytest.raises(NotReady, match="ps-0 has not sent"):
        model.lookup("t", np.array([1]))
    model.end_snapshot(table, 0)
    np.testing.assert_array_equal(model.lookup("t", np.array([1])), np.zeros((1, 2)))


@pytest.mark.parametrize(
    "other", [table_of(dim=3), table_of(compressor=FixedR8(2.0)), table_of(compressor=FixedR8(1.0))]
)
def test_other_rows_are_another_table_that_lacks_everything(other):
    model = ServedModel(2)
    first = model.begin_table(table_of(compressor=FixedR8(0.5)))
    for index in range(2):
        model.end_snapshot(first, index)
    assert model.begin_table(table_of(compressor=FixedR8(0.5))) is first
    assert model.begin_table(other) is not first
    assert model.lacks("t", 0)
    assert model.lacks("t", 1)

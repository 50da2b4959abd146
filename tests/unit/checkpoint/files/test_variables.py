"""Variables in checkpoints: split anew at any number of servers, with their optimizer state."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from megalith.checkpoint.files import variables as variable_files
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.variable.variable import UpdateKind, Variable
from megalith.errors import CheckpointDamaged
from megalith.ps.store.store import Store
from megalith.schema import Adam, Adamom, LinearWarmup, Sgd, Shampoo, VariableConfig
from megalith.wire import routing

RNG = np.random.default_rng(0)
CONFIGS = [
    VariableConfig(
        "big", RNG.standard_normal((70, 1000)).astype(np.float32), Adam(0.1), LinearWarmup(0.1, 5)
    ),
    VariableConfig("tall", RNG.standard_normal(100_000).astype(np.float32), Adamom(0.1)),
    VariableConfig("count", np.arange(40_000)),
    VariableConfig(
        "whole",
        RNG.standard_normal((200, 170)).astype(np.float32),
        Shampoo(warmup=1, tau_1=1, tau_2=1),
    ),
    VariableConfig("step", np.array(7, np.int64)),
    VariableConfig("plain", np.ones(3, np.float32), Sgd(0.5)),
]


def split_over(num_ps):
    """Trained variables by ps index."""
    owners = routing.even_owners(num_ps)
    held = [[] for _ in range(num_ps)]
    for config in CONFIGS:
        for part in config.split(num_ps):
            number = part.part.index if part.part else 0
            variable = Variable(part)
            held[routing.part_owner(owners, num_ps, config.name, number)].append(variable)
            if config.optimizer:
                for step in range(2, 5):
                    variable.apply(UpdateKind.GRADIENT, part.initial * np.float32(0.5), step)
    return held


def save(held, directory):
    return [
        variable_files.write(variable_files.copies_of(variables), directory, f"{index}.arrow")
        for index, variables in enumerate(held)
    ]


def restore(directory, files, num_ps):
    owners, held = routing.even_owners(num_ps), []
    for index in range(num_ps):
        saved = []
        for file in files:
            with pa.memory_map(str(directory / file.name)) as source:
                saved += variable_files.read(pa.ipc.open_file(source), file, owners, index)
        held.append(variable_files.owned(saved, owners, index))
    return held


def joined(held):
    """Whole values and state by name and field."""
    pieces = {}
    for variable in sorted(
        itertools.chain(*held),
        key=lambda variable: variable.config.part.index if variable.config.part else 0,
    ):
        value, state = variable.dump()
        for field, array in {"value": value, **state}.items():
            pieces.setdefault((variable.config.name, field), []).append(array)
    return {
        key: np.concatenate(parts) if parts[0].ndim and len(parts) > 1 else parts[0]
        for key, parts in pieces.items()
    }


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 5), (4, 2)])
def test_variables_saved_by_some_servers_are_equal_on_any_other_number(tmp_path, before, after):
    held = split_over(before)
    restored = restore(tmp_path, save(held, tmp_path), after)
    expected, found = joined(held), joined(restored)
    assert set(found) == set(expected)
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, err_msg=str(key))
    by_name = {
        variable.config.part_name: variable.config for variable in itertools.chain(*restored)
    }
    assert set(by_name) == {part.part_name for config in CONFIGS for part in config.split(after)}
    assert by_name["plain"].optimizer == Sgd(0.5)
    assert next(
        config for config in by_name.values() if config.name == "big"
    ).schedule == LinearWarmup(0.1, 5)


def save_shards(num_ps, directory):
    """A complete checkpoint of servers that know their buckets; returns what they hold."""
    held = split_over(num_ps)
    routes = routing.Routing(1, ("a",) * num_ps, routing.even_owners(num_ps))
    files = []
    for index, variables in enumerate(held):
        store = Store(index)
        store.route(routes, is_initialized=True)
        for variable in variables:
            store.adopt(variable=variable)
        files += save_shard(store, directory, "s", index, num_ps).files
    manifest.write(directory, Manifest(step=7, num_ps=num_ps, saved_at_s=1.0, files=tuple(files)))
    return held


def restore_shards(directory, num_ps):
    held = []
    for index in range(num_ps):
        store = Store(index)
        restore_shard(store, directory, routing.even_owners(num_ps), index)
        held.append(store.variables())
    return held


@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_split_variables_come_back_on_the_same_number_of_servers(tmp_path, num_ps):
    held = save_shards(num_ps, tmp_path)
    restored = restore_shards(tmp_path, num_ps)
    expected = joined(held)
    found = joined(restored)
    assert set(found) == set(expected)
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, err_msg=str(key))
    for before, after in zip(held, restored, strict=True):
        assert {each.config.part_name for each in after} == {
            each.config.part_name for each in before
        }


def test_a_missing_part_is_noticed(tmp_path):
    files = save(split_over(2), tmp_path)
    with pytest.raises(CheckpointDamaged, match=r"variable big: parts \[[01]\] of 2"):
        restore(tmp_path, files[:1], 2)


def test_any_arrow_reader_opens_it(tmp_path):
    (file,) = save(split_over(1), tmp_path)
    with pa.memory_map(str(tmp_path / file.name)) as source:
        rows = pa.ipc.open_file(source).read_all().to_pylist()
    big = next(row for row in rows if row["name"] == "big")
    np.testing.assert_array_equal(
        np.frombuffer(big["value"], "<f4").reshape(big["shape"]).shape, (70, 1000)
    )
    assert [name for name, _ in big["state"]] == ["m", "v", "beta1_power", "beta2_power"]
    assert file.rows == len(rows) == len(CONFIGS)


@pytest.mark.parametrize("num_ps", [1, 3])
def test_a_variable_that_is_not_finite_comes_back_as_it_was(tmp_path, num_ps):
    """Files of versions that let variables overflow."""
    config = VariableConfig("w", np.zeros((90, 1000), np.float32), Adam(0.1))
    overflowed = np.zeros((90, 1000), np.float32)
    overflowed[3, 7] = np.inf
    overflowed[80, 1] = np.nan
    variable = Variable(config)
    variable.load(overflowed, {name: field + 1 for name, field in variable.dump()[1].items()})
    files = save([[variable]], tmp_path)
    restored = joined(restore(tmp_path, files, num_ps))
    np.testing.assert_array_equal(restored["w", "value"], overflowed)
    np.testing.assert_array_equal(restored["w", "m"], np.ones((90, 1000)))

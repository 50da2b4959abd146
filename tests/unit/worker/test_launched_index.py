"""The index of a worker that a launcher has started, and what workers in step refuse."""

import pytest

from megalith.errors import InvalidSetting
from megalith.runtime.joining.membership import MembershipSettings
from megalith.worker.config import HookSettings, InStepSettings, TaskSettings, WorkerConfig
from megalith.worker.server import _as_launched, _in_step


def config(**settings):
    return WorkerConfig(membership=MembershipSettings(model_dir="m"), **settings)


@pytest.mark.parametrize(
    ("environ", "dense_sync", "index", "expected"),
    [
        ({}, "off", 0, 0),
        ({"OMPI_COMM_WORLD_RANK": "3"}, "off", 2, 2),
        ({"RANK": "3"}, "off", 0, 0),
        ({"RANK": "3"}, "gloo", 0, 3),
    ],
)
def test_the_index_is_the_rank_unless_one_is_given(environ, dense_sync, index, expected):
    given = config(index=index, in_step=InStepSettings(dense_sync=dense_sync))
    assert _as_launched(given, environ).index == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": TaskSettings(sharding="dynamic")}, "--sharding=dynamic"),
        ({"hooks": HookSettings(slow_start_steps=5)}, "--slow-start-steps"),
        ({"index": 2}, "--index=2: this is rank 0 of 1; .* one of them alone cannot be replaced"),
    ],
)
def test_settings_that_make_no_sense_in_step_are_refused(settings, message):
    given = config(in_step=InStepSettings(dense_sync="one"), **settings)
    with pytest.raises(InvalidSetting, match=message):
        _in_step(given)


def test_a_worker_alone_is_not_kept_in_step():
    assert _in_step(config()) is None

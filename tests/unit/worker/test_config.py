"""Where the index of a worker comes from."""

import pytest

from megalith.errors import InvalidSetting
from megalith.runtime.config.settings import load
from megalith.worker.config import WorkerConfig


def index_of(environ, **flags):
    flags["model_dir"] = "model"
    return load(WorkerConfig, "MEGALITH_WORKER_", flags=flags, environ=environ).index


def test_under_mpirun_a_worker_without_an_index_has_its_rank():
    rank = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
    assert index_of({}) == 0
    assert index_of(rank) == 2
    assert index_of(rank, index="0") == 0
    assert index_of({**rank, "MEGALITH_WORKER_INDEX": "1"}) == 1


@pytest.mark.parametrize("text", ["first", "-1"])
def test_a_rank_that_is_none_is_refused(text):
    with pytest.raises(InvalidSetting, match=text):
        index_of({"OMPI_COMM_WORLD_RANK": text})

"""Real ranks by gloo, each a process with RANK and WORLD_SIZE."""

import sys

import numpy as np
import pytest

pytest.importorskip("torch")

from support.launched import gloo, program, results
from support.sync_tasks import updated_densely


def test_two_ranks_of_gloo_update_an_embedding_as_a_dense_matrix():
    done = gloo(2, program("EmbeddingUpdate"))
    assert [status for status, _, _ in done] == [0, 0], done
    (result,) = results(done[0][1])
    found = np.array(list(result["figures"].values())).reshape(4, 3)
    np.testing.assert_allclose(found, updated_densely(2), rtol=0, atol=1e-6)


@pytest.mark.long
def test_a_killed_rank_of_gloo_is_named_by_the_others():
    done = gloo(3, program("EndsItself", {"how": "killed"}, sync_timeout_s=30))
    assert done[1][0] == -9
    for rank in (0, 2):
        status, _, errors = done[rank]
        assert status == 1
        assert "RankSilent" in errors
        assert "rank 1" in errors


@pytest.mark.long
def test_a_dense_part_under_distributed_data_parallel_learns_the_same():
    program = [sys.executable, "-m", "support.ddp_program"]
    plain, with_ddp = (gloo(2, [*program, how]) for how in ("plain", "ddp"))
    for done in (plain, with_ddp):
        assert [status for status, _, _ in done] == [0, 0], done
    losses = [[results(output)[0]["losses"] for _, output, _ in done] for done in (plain, with_ddp)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)

"""Real ranks by mpirun: what they learn, what the command prints, and how they end."""

import sys
import time

import numpy as np
import pytest

pytest.importorskip("mpi4py")

from megalith.local import local_train
from support.launched import BIN, mpirun, program, results
from support.sync_tasks import DeepFm, updated_densely


def test_two_ranks_learn_what_one_learns_from_the_joined_batches(tmp_path):
    done = mpirun(2, *program("DeepFm", evaluates=False, model_dir=str(tmp_path / "two")))
    assert done.returncode == 0, done.stderr
    joined = local_train(DeepFm(joins=2), model_dir=tmp_path / "one", evaluates=False)
    first, second = results(done.stdout)
    assert first["step"] == second["step"] == joined.step == 20

    ids = {"user": np.arange(300), "film": np.arange(100)}
    found = local_train(DeepFm(), start_from=first["checkpoint"], max_steps=1, evaluates=False)
    names = [variable.name for variable in DeepFm().variables]
    for ours, theirs in zip(found.read(ids, names), joined.read(ids, names), strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-6)


@pytest.mark.golden("G27")
def test_two_ranks_of_mpirun_update_an_embedding_as_a_dense_matrix():
    done = mpirun(2, *program("EmbeddingUpdate"))
    assert done.returncode == 0, done.stderr
    figures = next(result["figures"] for result in results(done.stdout) if result["figures"])
    found = np.array(list(figures.values())).reshape(4, 3)
    np.testing.assert_allclose(found, updated_densely(2), rtol=0, atol=1e-6)


def test_an_error_of_one_rank_ends_all_of_them_and_is_told():
    done = mpirun(2, *program("EndsItself", {"how": "raises"}))
    assert done.returncode != 0
    assert "ZeroDivisionError: a mistake of rank 1" in done.stderr
    assert not results(done.stdout)


@pytest.mark.parametrize("how", ["killed", pytest.param("exits", marks=pytest.mark.long)])
def test_the_others_end_when_a_rank_is_gone(how):
    done = mpirun(2, *program("EndsItself", {"how": how}))
    assert done.returncode != 0
    assert not results(done.stdout)


@pytest.mark.long
def test_the_others_end_when_a_rank_hangs_and_name_it():
    began = time.monotonic()
    done = mpirun(2, *program("EndsItself", {"how": "hangs"}, sync_timeout_s=6))
    assert done.returncode != 0
    assert "RankSilent" in done.stderr
    assert "for rank 1, which is dead, stuck or slow" in done.stderr
    assert time.monotonic() - began < 120  # rank 1 would sleep for ten minutes


def test_an_error_that_nobody_catches_ends_all_ranks(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import sys\n"
        "from megalith.sync.training import open_ranks\n"
        "def noted(*error):\n"
        "    print('noted by the program', file=sys.stderr)\n"
        "    sys.__excepthook__(*error)\n"
        "sys.excepthook = noted\n"
        "ranks = open_ranks()\n"
        "if ranks.index == 1:\n"
        "    raise KeyError('a mistake outside of the training')\n"
        "ranks.barrier()\n"
    )
    done = mpirun(2, sys.executable, path)
    assert done.returncode != 0
    told = done.stderr.index("rank 1 of 2:")
    assert "noted by the program" in done.stderr[told:]
    assert "KeyError: 'a mistake outside of the training'" in done.stderr[told:]


def test_a_rank_that_goes_on_after_another_one_was_silent_does_not_wait_for_it_at_its_end(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import sys, time\n"
        "from megalith.errors import RankSilent\n"
        "from megalith.sync.training import open_ranks\n"
        "ranks = open_ranks(sync_timeout_s=1)\n"
        "if ranks.index == 1:\n"
        "    time.sleep(600)\n"
        "try:\n"
        "    ranks.barrier()\n"
        "except RankSilent:\n"
        "    sys.exit(1)\n"
    )
    done = mpirun(2, sys.executable, path, timeout_s=60)
    assert done.returncode != 0


def test_a_worker_in_step_that_does_not_start_ends_the_others(tmp_path):
    """They wait for the job to begin, which it never would."""
    options = f"--dense-sync mpi --model-dir {tmp_path}"
    script = (
        f'test "$OMPI_COMM_WORLD_RANK" = 1 && TASK=no_such_module:Task || TASK=clicks\n'
        f"exec {BIN / 'megalith'} worker {options} --task $TASK\n"
    )
    done = mpirun(2, "sh", "-c", script, timeout_s=100)
    assert done.returncode != 0
    assert "worker-1 did not start" in done.stderr
    assert "no_such_module" in done.stderr


def test_an_error_of_another_kind_is_not_followed_by_calls_after_the_last_one(tmp_path):
    (tmp_path / "full_disk.py").write_text(
        "from megalith.local import saving\n"
        "from support.liked_task import LikedTask as Task\n"
        "save_shard = saving.save_shard\n"
        "def failing(holder, folder, save_id, index, count):\n"
        "    if index == 1:\n"
        "        raise OSError(28, 'No space left on device')\n"
        "    return save_shard(holder, folder, save_id, index, count)\n"
        "saving.save_shard = failing\n"
    )
    task = f"{tmp_path / 'full_disk.py'}:Task"
    options = ["--num-examples", "640", "--batch-size", "64", "--model-dir", tmp_path / "model"]
    done = mpirun(2, BIN / "megalith", "train", task, "--sync", "full", *options)
    assert done.returncode == 1
    assert "megalith: rank 0: rank 1 failed: OSError: [Errno 28] No space left" in done.stderr
    assert "after MPI_FINALIZE" not in done.stderr
    assert not list((tmp_path / "model").glob("*.ckpt-*"))


def test_the_command_trains_on_all_ranks_and_rank_0_prints(tmp_path):
    model_dir = tmp_path / "model"
    task = "support.liked_task:LikedTask"
    options = ["--num-examples", "6400", "--batch-size", "64", "--model-dir", model_dir]
    done = mpirun(2, BIN / "megalith", "train", task, "--sync", "full", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("training on 2 ranks (mpi)") == 1
    assert done.stdout.count("training finished") == 1
    assert "6,400" in done.stdout
    assert (model_dir / "model.ckpt-50").is_dir()
    assert (model_dir / "settings.json").is_file()


def test_rank_0_writes_what_tensorboard_shows(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    task = "support.liked_task:SummarizedTask"
    options = ["--num-examples", "6400", "--batch-size", "64", "--model-dir", tmp_path / "model"]
    logs = ["--tensorboard", tmp_path / "logs", "--summary-every-steps", "10"]
    done = mpirun(2, BIN / "megalith", "train", task, "--sync", "full", *options, *logs)
    assert done.returncode == 0, done.stderr
    assert [folder.name for folder in (tmp_path / "logs").iterdir()] == ["worker-0"]

    read = accumulators.EventAccumulator(str(tmp_path / "logs" / "worker-0"))
    read.Reload()
    losses = read.Scalars("loss")
    assert 1 <= len(losses) <= 5  # of 50 steps every tenth, unless the last was still written
    assert {event.step % 10 for event in losses} == {9}
    assert all(0.1 < event.value < 1.5 for event in losses)
    assert len(read.Scalars("gradient_norm/variables/bias")) == len(losses)
    assert len(read.Tensors("gating/monolith_nas_weight")) == len(losses)
    (evaluated,) = read.Scalars("evaluation/auc")
    assert evaluated.step == 50
    assert f"{evaluated.value:.4f}" in done.stdout

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from megalith.checkpoint.directory import listing
from megalith.controller.config import ControllerConfig
from megalith.controller.saving import checkpoint_dir
from megalith.controller.server import ControllerServer
from megalith.errors import InvalidSetting, ModelDirInUse
from megalith.runtime.process.lifecycle import ExitRequest
from support import object_stores


@pytest.fixture(params=["path", "memory"])
def elsewhere(request, tmp_path):
    yield str(
        tmp_path / "shared" if request.param == "path" else object_stores.new_folder("memory")
    )
    object_stores.forget_memory()


@pytest.fixture
def model_dir(tmp_path):
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def test_without_a_setting_it_is_the_model_directory(model_dir):
    assert checkpoint_dir.take(model_dir, "") == model_dir
    assert checkpoint_dir.take(model_dir, str(model_dir)) == model_dir
    assert list(model_dir.iterdir()) == []


def test_a_job_that_starts_again_keeps_its_directory(model_dir, elsewhere):
    first = checkpoint_dir.take(model_dir, elsewhere)
    assert str(first) == elsewhere
    assert checkpoint_dir.take(model_dir, elsewhere) == first
    assert checkpoint_dir.is_of_a_job(first)


def test_a_job_whose_checkpoints_are_elsewhere_does_not_start_empty(model_dir, elsewhere, tmp_path):
    checkpoint_dir.take(model_dir, elsewhere)
    with pytest.raises(InvalidSetting, match="give --checkpoint-dir="):
        checkpoint_dir.take(model_dir, "")

    with pytest.raises(InvalidSetting, match=r"the checkpoints of .* are in"):
        checkpoint_dir.take(model_dir, str(tmp_path / "third"))


def test_a_job_with_checkpoints_of_its_own_does_not_start_empty(model_dir, elsewhere):
    listing.write(model_dir, listing.Listing("model.ckpt-1").text())
    with pytest.raises(InvalidSetting, match=f"add --restore-dir={model_dir}"):
        checkpoint_dir.take(model_dir, elsewhere)

    assert str(checkpoint_dir.take(model_dir, elsewhere, str(model_dir))) == elsewhere


def test_two_jobs_do_not_share_a_directory(model_dir, elsewhere, tmp_path):
    first = checkpoint_dir.take(model_dir, elsewhere)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ModelDirInUse) as error:
        checkpoint_dir.take(other, elsewhere)

    assert str(model_dir) in str(error.value)
    assert f"remove {first / checkpoint_dir.OWNER}" in str(error.value)
    assert list(other.iterdir()) == []
    (first / checkpoint_dir.OWNER).unlink()
    assert checkpoint_dir.take(other, elsewhere) == first


def test_a_copy_of_a_model_directory_is_another_job(model_dir, elsewhere, tmp_path):
    first = checkpoint_dir.take(model_dir, elsewhere)
    copied = tmp_path / "copied"
    shutil.copytree(model_dir, copied)
    before = (first / checkpoint_dir.OWNER).read_text()
    with pytest.raises(ModelDirInUse, match=f"{copied} is a copy of {model_dir}"):
        checkpoint_dir.take(copied, elsewhere)

    assert (first / checkpoint_dir.OWNER).read_text() == before
    assert checkpoint_dir.take(model_dir, elsewhere) == first


def test_a_model_directory_that_was_moved_keeps_its_checkpoints(model_dir, elsewhere, tmp_path):
    first = checkpoint_dir.take(model_dir, elsewhere)
    moved = tmp_path / "moved"
    model_dir.rename(moved)
    assert checkpoint_dir.take(moved, elsewhere) == first
    assert (first / checkpoint_dir.OWNER).read_text().endswith(f":{moved}")

    shutil.copytree(moved, model_dir)
    with pytest.raises(ModelDirInUse, match=f"{model_dir} is a copy of {moved}"):
        checkpoint_dir.take(model_dir, elsewhere)


def test_the_same_model_directory_by_another_path_is_no_copy(model_dir, elsewhere, tmp_path):
    first = checkpoint_dir.take(model_dir, elsewhere)
    (tmp_path / "link").symlink_to(model_dir)
    assert checkpoint_dir.take(tmp_path / "link", elsewhere) == first


def test_the_model_directory_of_another_job_is_refused(model_dir, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "controller.lock").touch()
    with pytest.raises(ModelDirInUse, match="model directory of another job"):
        checkpoint_dir.take(model_dir, str(other))


def test_a_note_that_cannot_be_read_is_named(model_dir):
    (model_dir / "checkpoint_dir.txt").write_text("{")
    with pytest.raises(InvalidSetting, match=r"checkpoint_dir.txt does not say"):
        checkpoint_dir.take(model_dir, "")


def test_the_checkpoint_directory_of_a_job_is_no_model_directory_of_another(model_dir, tmp_path):
    shared = tmp_path / "shared"
    checkpoint_dir.check_model_dir(model_dir)
    checkpoint_dir.take(model_dir, str(shared))
    checkpoint_dir.check_model_dir(model_dir)
    before = sorted(shared.iterdir())
    config = ControllerConfig(model_dir=str(shared), num_ps=1, num_workers=0)
    with pytest.raises(ModelDirInUse, match=f"add --restore-dir={shared}"):
        ControllerServer(config, ExitRequest())

    assert sorted(shared.iterdir()) == before, "its owner would be refused by a lock file"
    assert checkpoint_dir.take(model_dir, str(shared)) == shared


def test_of_many_jobs_that_start_at_once_one_gets_the_directory(tmp_path):
    model_dirs = [tmp_path / f"model-{number}" for number in range(8)]
    for path in model_dirs:
        path.mkdir()

    together = threading.Barrier(len(model_dirs))

    def is_taken(path):
        together.wait()
        try:
            checkpoint_dir.take(path, str(tmp_path / "shared"))
        except ModelDirInUse:
            return False
        return True

    with ThreadPoolExecutor(len(model_dirs)) as pool:
        assert sum(pool.map(is_taken, model_dirs)) == 1

"""What is said of the last save of a job."""

from pathlib import Path

import pytest

from megalith.controller.job_end import JobEnding
from megalith.controller.saving.records import SavedCheckpoint, SaveRecord
from megalith.controller.saving.schedule import SaveNews, SaveSchedule, Unsaved

PART = Path("/m/model.ckpt-r1-12")


class Cluster:
    """A job at step 12 that ends, and whose model was last saved at step 5."""

    global_step = 12
    num_workers = 1
    has_trained = True
    has_unsaved_pushes = True
    ending = (False, "rows are missing")

    def __init__(self):
        self.outcome = None
        self.saved = []

    def wait_until_saving(self, stop):
        return True

    def end(self, succeeded, reason):
        self.outcome = (succeeded, reason)

    def checkpoint_saved(self, path, at_s, pushes):
        self.saved.append(path)


class Metrics:
    def saved(self, record):
        """Nobody looks."""


class PartSaver:
    """Saves what is left of a model that lacks rows."""

    def __init__(self, news, is_whole):
        self._news = news
        self._is_whole = is_whole

    def save(self):
        self._news.tell(SaveRecord(0.0, 1.0, 12, str(PART), is_whole=self._is_whole))
        return SavedCheckpoint(PART, 12, 3, is_whole=self._is_whole)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_part_of_a_model_is_not_called_saved_and_what_is_not_saved_is_said(is_whole):
    cluster = Cluster()
    unsaved = Unsaved(cluster, "/m/model.ckpt-5", 5)
    news = SaveNews(cluster, SaveSchedule(0, 0, 0.0, 5), unsaved, Metrics())
    ending = JobEnding(cluster, PartSaver(news, is_whole), unsaved, timeout_s=1.0)
    ending.run(lambda: False)
    succeeded, reason = cluster.outcome
    assert not succeeded
    if is_whole:
        assert reason == f"rows are missing; saved {PART}"
        assert cluster.saved == [str(PART)]
        return

    assert "not saved whole: steps 5..12 since /m/model.ckpt-5" in reason
    assert f"{PART} has what is left" in reason
    assert unsaved.text() == "steps 5..12 since /m/model.ckpt-5"
    assert cluster.saved == [], "a ps that is replaced starts from the complete one"

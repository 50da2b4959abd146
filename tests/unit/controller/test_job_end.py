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

    def __init__(self, dropped=None):
        self.outcome = None
        self.saved = []
        self.dropped = dropped or {}

    def dropped_tables(self):
        return self.dropped

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


class TrainedCluster(Cluster):
    """A job whose workers are done, and whose model was saved at its last step."""

    global_step = 5
    has_unsaved_pushes = False
    ending = None

    is_heard = True

    def hear_all_ps(self, stop, timeout_s):
        return self.is_heard

    def mark_saved(self):
        """Nobody evaluates."""

    def wait_until_workers_finish(self, stop):
        return True

    def early_ends(self):
        return {}

    def untrained_shares(self):
        return []


class WholeSaver:
    def __init__(self, news):
        self._news = news

    def save(self):
        path = Path("/m/model.ckpt-r1-5")
        self._news.tell(SaveRecord(200.0, 1.0, 5, str(path)))
        return SavedCheckpoint(path, 5, 3)


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        ({}, "nothing new since /m/model.ckpt-5"),
        ({"old": 100.0}, "saved /m/model.ckpt-r1-5"),  # else it would come back at the next start
    ],
)
def test_the_last_save_leaves_out_a_table_that_was_dropped_since(dropped, said):
    cluster = TrainedCluster(dropped)
    unsaved = Unsaved(cluster, "", 0)
    unsaved.saved("/m/model.ckpt-5", 5, began_at_s=50.0)
    news = SaveNews(cluster, SaveSchedule(0, 0, 0.0, 5), unsaved, Metrics())
    JobEnding(cluster, WholeSaver(news), unsaved, timeout_s=1.0).run(lambda: False)
    assert cluster.outcome == (True, f"all workers finished; {said}")


class PushedAMomentAgo(TrainedCluster):
    """A program has pushed, and its ps has not reported that yet."""

    def hear_all_ps(self, stop, timeout_s):
        self.has_unsaved_pushes = True
        return True

    def checkpoint_saved(self, path, at_s, pushes):
        self.has_unsaved_pushes = False


class SilentServers(TrainedCluster):
    is_heard = False


@pytest.mark.parametrize("make_cluster", [PushedAMomentAgo, SilentServers])
def test_the_last_save_is_left_out_only_if_every_ps_has_said_that_nothing_is_new(make_cluster):
    cluster = make_cluster()
    unsaved = Unsaved(cluster, "/m/model.ckpt-5", 5)
    news = SaveNews(cluster, SaveSchedule(0, 0, 0.0, 5), unsaved, Metrics())
    JobEnding(cluster, WholeSaver(news), unsaved, timeout_s=1.0).run(lambda: False)
    assert cluster.outcome == (True, "all workers finished; saved /m/model.ckpt-r1-5")


@pytest.mark.parametrize(
    ("early", "said"),
    [
        ({}, "all workers finished"),
        ({"worker-0": "late", "worker-1": "late"}, "all workers ended their shares early: late"),
        (
            {"worker-1": "low loss"},
            "all workers finished; their shares ended early: worker-1 (low loss)",
        ),
        (
            {"worker-0": "late", "worker-1": "low loss"},
            "all workers finished; their shares ended early: worker-0 (late), worker-1 (low loss)",
        ),
    ],
)
def test_a_job_whose_workers_were_ended_early_says_why(early, said):
    cluster = Cluster()
    cluster.num_workers = 2
    cluster.ending = None
    cluster.has_trained = False
    cluster.is_saving_last = True
    cluster.early_ends = lambda: early
    cluster.mark_saved = lambda: None
    cluster.wait_until_workers_finish = lambda stop: True
    cluster.has_unsaved_pushes = False
    cluster.global_step = 5
    cluster.untrained_shares = list
    ending = JobEnding(cluster, None, Unsaved(cluster, "/m/model.ckpt-5", 5), timeout_s=1.0)
    assert ending.said == said
    ending.run(lambda: False)
    assert cluster.outcome == (True, f"{said}; nothing was trained")

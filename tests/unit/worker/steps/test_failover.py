import pytest

from megalith.errors import (
    DeadlinePassed,
    MessageTooLarge,
    NonFiniteValue,
    Overloaded,
    PeerUnreachable,
    StaleEpoch,
    UnknownTable,
)
from megalith.worker.steps.failover import Failover


class Cluster:
    """Fails as told, once per try; `epochs` is what the worker sees at each look."""

    def __init__(self, *failures, changes=(), max_retries=6):
        self.failures, self.changes = list(failures), set(changes)
        self.epoch, self.tries, self.waits, self.failovers = 1, 0, [], 0
        self.is_stopping = False
        self.failover = Failover(30.0, max_retries, lambda: self.epoch, self.pause, self.count)

    def pause(self, seconds):
        self.waits.append(seconds)
        self.epoch += self.tries in self.changes
        return not self.is_stopping

    def count(self):
        self.failovers += 1

    def step(self):
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)


@pytest.mark.golden("G28")
def test_a_first_step_past_its_deadline_is_tried_again_in_an_unchanged_cluster(caplog):
    cluster = Cluster(DeadlinePassed("too late"))
    cluster.failover.run(cluster.step)
    assert (cluster.tries, cluster.waits, cluster.failovers) == (2, [30.0], 1)
    assert "Temporary error: too late. Retrying..." in caplog.text


def test_tries_in_an_unchanged_cluster_are_not_counted():
    cluster = Cluster(*[PeerUnreachable("nobody at ps-1")] * 50, max_retries=0)
    cluster.failover.run(cluster.step)
    assert cluster.tries == 51


def test_tries_after_changes_are_counted_against_the_budget():
    errors = [StaleEpoch("moved"), DeadlinePassed("late"), PeerUnreachable("gone")]
    enough = Cluster(*errors, changes={1, 2, 3}, max_retries=3)
    enough.failover.run(enough.step)
    assert enough.tries == 4
    spent = Cluster(*errors, changes={1, 2, 3}, max_retries=2)
    with pytest.raises(PeerUnreachable, match="gone"):
        spent.failover.run(spent.step)
    assert spent.tries == 3


def test_a_step_that_succeeds_gives_the_budget_back():
    cluster = Cluster(changes=range(100), max_retries=1)
    for _ in range(5):
        cluster.failures = [PeerUnreachable("gone")]
        cluster.failover.run(cluster.step)
    assert cluster.failovers == 5


def test_an_overloaded_server_is_waited_for_and_never_ends_the_worker():
    cluster = Cluster(*[Overloaded("1073741824 bytes are in flight")] * 50, max_retries=0)
    cluster.failover.run(cluster.step)
    assert (cluster.tries, cluster.failovers) == (51, 50)


@pytest.mark.parametrize(
    "error",
    [MessageTooLarge("300 MB"), UnknownTable("t"), NonFiniteValue("NaN"), AssertionError("no")],
)
def test_anything_else_ends_the_worker_at_once(error):
    cluster = Cluster(error)
    with pytest.raises(type(error)):
        cluster.failover.run(cluster.step)
    assert (cluster.tries, cluster.failovers) == (1, 0)


def test_a_worker_that_stops_does_not_try_again():
    cluster = Cluster(PeerUnreachable("gone"))
    cluster.is_stopping = True
    with pytest.raises(PeerUnreachable):
        cluster.failover.run(cluster.step)
    assert cluster.tries == 1

"""What the ledger of `ledger_task` says of the workers of a job."""

from megalith.client import connect
from support.waiting import wait_until


def done_by_worker(processes):
    """How many examples each worker has trained, by what the ps have applied."""
    with connect(model_dir=str(processes.model_dir)) as cluster:
        return cluster.pull({}, ["done"]).variables["done"].astype(int)


def reported_by_worker(processes):
    """How many examples each worker has reported as trained."""
    members = processes.job().status().members
    return [member.examples for member in members if member.role == "worker"]


def unreported(processes, index):
    """What a worker that is dead has trained beyond its last report."""
    seen = []

    def is_settled():
        """Its last push may still be on its way through the ps."""
        state = (int(done_by_worker(processes)[index]), reported_by_worker(processes)[index])
        seen.append(state)
        return len(seen) >= 3 and len(set(seen[-3:])) == 1

    wait_until(is_settled, 30, what="the last push of a dead worker is applied")
    done, reported = seen[-1]
    return done - reported

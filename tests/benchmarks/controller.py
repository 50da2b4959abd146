"""What one report of a member costs the controller, with 2000 workers and 200 parameter servers in
the cluster."""

import time

from report import report

from megalith.controller.coordinator import Coordinator
from megalith.controller.members.roster import Patience, Registration, Role
from megalith.wire.reports import PsReport, WorkerReport

NUM_PS, NUM_WORKERS = 200, 2000
REPORTS = 20_000


def main():
    patience = Patience(silence_s=1e6, suspect_s=1e6, lost_worker_s=1e6)
    cluster = Coordinator(NUM_PS, NUM_WORKERS, patience=patience)

    def join(role, index):
        registration = Registration(role, index, f"{role}-{index}:1", incarnation=f"{role}-{index}")
        return cluster.join(registration, lambda directive: None)

    servers = [join(Role.PS, index) for index in range(NUM_PS)]
    for session in servers:
        cluster.report_ps(session, PsReport(is_ready=True))
    workers = [join(Role.WORKER, index) for index in range(NUM_WORKERS)]
    for session in workers:
        cluster.report_worker(session, WorkerReport(has_begun=True))
    start = time.perf_counter()
    for number in range(REPORTS):
        session = workers[number % NUM_WORKERS]
        cluster.report_worker(
            session, WorkerReport(has_begun=True, global_step=number, position=number)
        )
    seconds = time.perf_counter() - start
    report("one report of a worker", seconds / REPORTS * 1e6, "us", workers=NUM_WORKERS, ps=NUM_PS)


if __name__ == "__main__":
    main()

"""What the AppMaster's /metrics page says."""

from megalith.appmaster.heartbeats import Heartbeats
from megalith.appmaster.job import Job
from megalith.appmaster.supervision import Supervision
from megalith.runtime.monitoring.metrics import Metrics


def appmaster_metrics(heartbeats: Heartbeats, supervision: Supervision, job: Job) -> Metrics:
    """The metrics of one AppMaster, each asked for at every scrape."""

    def num_running() -> int:
        return sum(process.is_running for process in supervision.processes())

    metrics = Metrics()
    metrics.counter(
        "megalith_app_heartbeats_total",
        "Heart-beats of the job since start.",
        lambda: heartbeats.count,
    )

    metrics.gauge(
        "megalith_app_last_heartbeat_seconds",
        "Unix time of the last one; 0 = none.",
        lambda: heartbeats.last_s,
    )

    metrics.gauge("megalith_app_ended", "1 once the job is over.", lambda: job.ending is not None)
    metrics.counter(
        "megalith_app_restarts_total", "Processes started again, in all.", supervision.restarts
    )
    metrics.gauge(
        "megalith_app_processes_running",
        "Processes of the job that run, as their supervisor says.",
        num_running,
    )

    return metrics

"""The metric names that Monolith has, as a scraper sees them."""

from prometheus_client import generate_latest

from megalith.controller.coordinator import Coordinator
from megalith.controller.job_metrics import JobMetrics
from megalith.controller.members.directives import Phase
from megalith.controller.members.roster import Patience, Registration, Role
from megalith.controller.saving.records import SaveRecord
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.monitoring.monolith_metrics import MonolithMetrics
from megalith.wire.reports import PsReport, WorkerReport
from megalith.worker.metrics import StepMetrics
from megalith.worker.session.progress import Progress


def page(metrics):
    """Values by name and labels, as text."""
    lines = [
        line
        for line in generate_latest(metrics.registry).decode().splitlines()
        if not line.startswith("#")
    ]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_the_prefix_is_monolith_s_variable():
    metrics = Metrics()
    MonolithMetrics(metrics, {"MONOLITH_METRIC_PREFIX": "monolith.training.my-model"}).counter(
        "x.all", "An x."
    ).inc()
    assert page(metrics)["monolith_training_my_model_x_all_total"] == 1


def test_formation_saves_and_missing_ps_of_the_controller(monkeypatch):
    monkeypatch.delenv("MONOLITH_METRIC_PREFIX", raising=False)
    metrics, now, left = Metrics(), [10.0], [1]
    patience = Patience(silence_s=10.0, suspect_s=5.0, lost_worker_s=60.0)
    cluster = Coordinator(1, 1, patience=patience, clock=lambda: now[0])
    job = JobMetrics(metrics, cluster, "clicks", lambda: left[0], clock=lambda: now[0])
    tags = '{cluster_type="stable",model_name="clicks"}'
    job.watch()
    assert page(metrics)[f"monolith_containers_num_left_ps{tags}"] == 1
    assert page(metrics)[f"monolith_containers_job_waiting{tags}"] == 1
    ps = cluster.join(Registration(Role.PS, 0, "a:1", incarnation="a"), lambda directive: None)
    cluster.report_ps(ps, PsReport(is_ready=True))
    left[0], now[0] = 0, 13.0
    job.watch()
    assert cluster.state().phase is Phase.INITIALIZING
    worker = cluster.join(
        Registration(Role.WORKER, 0, "b:1", incarnation="b"), lambda directive: None
    )
    cluster.report_worker(worker, WorkerReport(global_step=1))
    now[0] = 14.5
    for _ in range(3):
        job.watch()
    job.saved(SaveRecord(0.0, 2.5, 1, path="/x"))
    job.saved(SaveRecord(0.0, 9.0, 1, error="disk full"))
    seen = page(metrics)
    assert seen[f"monolith_containers_num_left_ps{tags}"] == 0
    assert seen[f"monolith_containers_job_waiting{tags}"] == 0
    assert seen[f"monolith_training_container_ready_elapsed_time_all_sum{tags}"] == 3.0
    assert seen[f"monolith_training_run_start_elapsed_time_all_sum{tags}"] == 1.5
    assert seen[f"monolith_training_run_start_elapsed_time_all_count{tags}"] == 1
    assert seen['monolith_training_save_checkpoint_total{mode="full"}'] == 1
    assert seen['monolith_training_save_checkpoint_time_sum{mode="full"}'] == 2.5
    assert seen['monolith_training_save_checkpoint_failed_total{mode="full"}'] == 1


def test_steps_failovers_and_the_heart_beat_of_a_chief(monkeypatch):
    monkeypatch.delenv("MONOLITH_METRIC_PREFIX", raising=False)
    metrics, now, wall = Metrics(), [0.0], [1000.0]
    progress = Progress(clock=lambda: now[0])
    chief = StepMetrics(
        metrics, 0, "clicks", lambda: progress.snapshot().is_finished, wall_clock=lambda: wall[0]
    )
    progress.watched_by(chief)
    for second in (1.0, 1.5, 2.0):
        now[0] = second
        progress.step_done(1, 10, 0.5)
    progress.set(is_blocked=True)
    progress.set(is_blocked=False)
    now[0] = 900.0
    progress.step_done(4, 10, 0.5)  # the time at the barrier is no step's
    progress.failed_over()
    seen, tags = page(metrics), '{cluster_type="stable",model_name="clicks"}'
    assert seen[f"monolith_training_run_steps_all_total{tags}"] == 4
    assert seen[f"monolith_training_run_steps_elapsed_time_all_sum{tags}"] == 1.0
    assert seen[f"monolith_training_run_steps_elapsed_time_all_count{tags}"] == 2
    assert (
        seen['monolith_training_worker_failover_cnt_total{model_name="clicks",worker_index="0"}']
        == 1
    )
    assert seen['monolith_training_training_heart_beat{type="running"}'] == 1000.0
    wall[0] = 1010.0
    assert page(metrics)['monolith_training_training_heart_beat{type="running"}'] == 1000.0
    wall[0] = 1031.0
    assert page(metrics)['monolith_training_training_heart_beat{type="running"}'] == 1031.0
    assert page(metrics)['monolith_training_training_heart_beat{type="stopped"}'] == 0.0
    progress.set(is_finished=True)
    assert page(metrics)['monolith_training_training_heart_beat{type="stopped"}'] == 1031.0

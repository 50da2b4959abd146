from types import SimpleNamespace

from megalith.cli.training import summary_line


def status(*positions, phase="running", finished=False, metrics=None):
    workers = [
        SimpleNamespace(
            role="worker",
            position=done,
            total_batches=total,
            examples_per_s=10.0,
            loss=0.5,
            metrics=metrics or {},
            is_finished=finished,
        )
        for done, total in positions
    ]
    return SimpleNamespace(phase=phase, members=workers, global_step=7)


def test_workers_that_have_not_begun_are_not_taken_for_done():
    assert summary_line(status((0, 0), (0, 0))) == (0, 0, "step 7  20 examples/s  loss 0.5000")


def test_an_endless_job_shows_its_rate():
    assert summary_line(status((5, 0), (6, 0))) == (11, 0, "step 7  20 examples/s  loss 0.5000")


def test_when_all_batches_are_done_the_rest_is_evaluation():
    assert summary_line(status((5, 5), (6, 6))) == (11, 11, "step 7  evaluating and saving")
    assert summary_line(status((5, 0), (6, 0), finished=True)) == (
        11,
        0,
        "step 7  evaluating and saving",
    )
    assert summary_line(status((4, 5), (6, 6)))[2].endswith("loss 0.5000")


def test_a_cluster_that_forms_says_so():
    assert summary_line(status((0, 9), phase="forming")) == (0, 0, "forming the cluster")


def test_what_a_task_says_of_its_steps_stands_beside_the_loss():
    line = summary_line(status((1, 9), metrics={"auc": 0.75}))[2]
    assert line.endswith("loss 0.5000  AUC 0.7500")

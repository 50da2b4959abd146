"""Up to when the data of a job is trained, as the platform is told."""

from types import SimpleNamespace

from megalith.appmaster.servicer import time_point_of


def status(*workers):
    members = [SimpleNamespace(req_time_s=0, is_finished=False)]  # a ps
    for req_time_s, is_finished in workers:
        members.append(SimpleNamespace(req_time_s=req_time_s, is_finished=is_finished))
    return SimpleNamespace(members=members)


def test_without_times_it_is_empty():
    assert time_point_of(status((0, False))) == ""


def test_it_is_that_of_the_worker_that_is_farthest_behind():
    late = status((1_700_000_000, False), (1_700_000_060, False), (0, False))
    assert time_point_of(late) == "2023-11-14T22:13:20Z"


def test_finished_workers_hold_nobody_up():
    done = (1_700_000_000, True)
    assert time_point_of(status(done, (1_700_000_060, False))) == "2023-11-14T22:14:20Z"
    assert time_point_of(status(done, (1_700_000_060, True))) == "2023-11-14T22:14:20Z"

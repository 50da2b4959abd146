"""Which ps hold the model: by index, as before, by override, by measured speed.

And who follows those that die.
"""

import pytest

from megalith.controller.members.roster import Registration, Role
from megalith.controller.selection import ps_ranking
from megalith.controller.selection.formation import Formation
from megalith.controller.selection.offers import Shape
from megalith.controller.selection.ps_list import PsListFile
from megalith.discovery.liveness import Liveness
from megalith.errors import IndexTaken, InvalidSetting, NotInCluster


class Scene:
    """A formation with a clock, workers and a prober that the test moves."""

    def __init__(self, tmp_path, **shape):
        self.now, self.orders, self.sessions, self.dead = 0.0, [], [1], ()
        self.ps_list = PsListFile(tmp_path)
        self.shape = Shape(**{"num_workers": 1, "takeover_s": 30.0, **shape})
        self.offers = {}
        self.restart_controller()

    def restart_controller(self):
        self.formation = Formation(
            self.shape,
            self.ps_list,
            self.order,
            probe=lambda asked: Liveness((), self.dead),
            clock=lambda: self.now,
        )

    def order(self, order):
        self.orders.append(order)
        return self.sessions

    def arrive(self, index, held_shard=None, process=0):
        registration = Registration(
            Role.PS,
            index,
            f"host{index}:{1000 + process}",
            incarnation=f"{index}-{process}",
            held_shard=held_shard,
        )
        self.offers[index] = self.formation.offer(registration)
        self.formation.advance()
        return self.offers[index]

    def leave(self, index):
        self.formation.withdraw(self.offers[index])
        self.formation.advance()

    def pass_time(self, seconds):
        self.now += seconds
        self.formation.advance()

    def answer(self, session=1, order=None, **rows_per_s):
        rates = {f"{host}:1000": rate for host, rate in rows_per_s.items()}
        self.formation.answer(session, (order or self.orders[-1]).number, rates)
        self.formation.advance()

    def shards(self):
        return {candidate.index: candidate.shard for candidate in self.formation.candidates()}


def test_without_a_choice_nothing_is_decided_here(tmp_path):
    assert not Scene(tmp_path, num_ps=2).formation.is_selective
    assert Scene(tmp_path, num_ps=2).formation.candidates() == []


def test_redundant_ps_the_first_that_are_here_win_in_the_order_of_their_indices(tmp_path):
    scene = Scene(tmp_path, num_ps=2, num_redundant_ps=2)
    scene.arrive(3)
    assert scene.formation.num_left == 1
    scene.arrive(1)
    assert scene.shards() == {1: 0, 3: 1}
    assert scene.formation.num_left == 0
    scene.arrive(0)
    assert scene.shards() == {0: None, 1: 0, 3: 1}
    assert scene.ps_list.read() == ("host1:1000", "host3:1000")
    assert scene.formation.wait(scene.offers[3]) == 1


def test_a_ps_that_comes_back_has_its_shard_again(tmp_path):
    scene = Scene(tmp_path, num_ps=2, num_redundant_ps=1)
    scene.arrive(1)
    scene.arrive(2)
    scene.arrive(0)
    scene.leave(2)
    assert scene.formation.num_left == 1
    scene.pass_time(29.0)
    assert scene.arrive(2, process=1).shard == 1
    scene.pass_time(60.0)
    assert scene.shards() == {0: None, 1: 0, 2: 1}


def test_one_that_stands_by_takes_over_after_a_while_and_the_old_one_is_refused(tmp_path):
    scene = Scene(tmp_path, num_ps=2, num_redundant_ps=1)
    for index in (0, 1, 2):
        scene.arrive(index)
    scene.leave(1)
    scene.pass_time(29.9)
    assert scene.offers[2].shard is None
    scene.pass_time(0.2)
    assert scene.formation.wait(scene.offers[2]) == 1
    assert scene.ps_list.read() == ("host0:1000", "host2:1000")
    with pytest.raises(IndexTaken, match="shard 1 of ps-1 was taken over by ps-2"):
        scene.arrive(1, held_shard=1)
    assert scene.arrive(1, process=1).shard is None  # as a new process it stands by


def test_two_processes_with_one_index_the_second_is_refused(tmp_path):
    scene = Scene(tmp_path, num_ps=1, num_redundant_ps=1)
    scene.arrive(0)
    with pytest.raises(IndexTaken, match="ps-0 is held by a live process at host0:1000"):
        scene.arrive(0, process=1)
    with pytest.raises(NotInCluster, match="ps index 2 is outside this cluster of 2 ps"):
        scene.arrive(2)
    assert scene.shards() == {0: 0}


def test_extra_ps_are_measured_and_the_best_are_chosen_in_the_order_of_their_speed(tmp_path):
    scene = Scene(tmp_path, num_ps=2, num_extra_ps=2)
    for index in range(4):
        assert scene.orders == []
        scene.arrive(index)
    (order,) = scene.orders
    assert order.addresses == tuple(f"host{index}:1000" for index in range(4))
    assert scene.shards() == dict.fromkeys(range(4))
    scene.answer(host0=10, host1=40, host2=20, host3=30)
    assert scene.shards() == {0: None, 1: 0, 2: None, 3: 1}
    assert [c.rows_per_s for c in scene.formation.candidates()] == [10, 40, 20, 30]
    scene.answer(host0=99, host1=0, host2=0, host3=0)  # late: nothing changes
    assert scene.shards() == {0: None, 1: 0, 2: None, 3: 1}


def test_the_mean_of_all_workers_counts_and_those_that_do_not_answer_are_not_waited_for_long(
    tmp_path,
):
    scene = Scene(tmp_path, num_ps=1, num_extra_ps=1, num_workers=3, benchmark_s=5.0)
    scene.sessions = [1, 2, 3]
    scene.arrive(0)
    scene.arrive(1)
    scene.answer(session=1, host0=10, host1=0)
    scene.answer(session=2, host0=10, host1=50)
    assert scene.shards() == {0: None, 1: None}
    scene.pass_time(15.1)
    assert scene.shards() == {0: None, 1: 0}
    assert [c.rows_per_s for c in scene.formation.candidates()] == [10, 25]


def test_nothing_is_measured_before_nine_tenths_of_the_workers_are_here(tmp_path):
    scene = Scene(tmp_path, num_ps=1, num_extra_ps=1, num_workers=10)
    scene.sessions = list(range(8))
    scene.arrive(0)
    scene.arrive(1)
    tried = len(scene.orders)
    scene.sessions = list(range(9))
    scene.pass_time(0.5)
    assert len(scene.orders) == tried + 1
    scene.pass_time(0.5)
    assert len(scene.orders) == tried + 1


def test_a_candidate_that_dies_while_it_is_measured_begins_the_measurement_anew(tmp_path):
    scene = Scene(tmp_path, num_ps=1, num_extra_ps=1, num_redundant_ps=1)
    scene.arrive(0)
    scene.arrive(1)
    scene.leave(1)
    scene.answer(host0=10, host1=99)
    assert scene.shards() == {0: None, 1: None}
    scene.arrive(2)
    assert scene.orders[-1].addresses == ("host0:1000", "host2:1000")
    scene.answer(order=scene.orders[0], host0=1, host1=99)  # of the first order
    assert scene.shards() == dict.fromkeys(range(3))
    scene.answer(host0=10, host2=5)
    assert scene.shards() == {0: 0, 1: None, 2: None}


def test_one_with_a_lower_index_that_comes_late_does_not_begin_it_anew(tmp_path):
    scene = Scene(tmp_path, num_ps=1, num_extra_ps=1, num_redundant_ps=1)
    scene.arrive(1)
    scene.arrive(2)
    scene.arrive(0)
    assert len(scene.orders) == 1
    scene.answer(host1=1, host2=2)
    assert scene.shards() == {0: None, 1: None, 2: 0}


def test_a_finished_result_is_used_again_by_the_next_controller_if_all_of_them_live(tmp_path):
    scene = Scene(tmp_path, num_ps=2, num_extra_ps=1)
    for index in range(3):
        scene.arrive(index)
    scene.answer(host0=1, host1=3, host2=2)
    scene.restart_controller()
    for index in (0, 2, 1):
        scene.arrive(index)
    assert scene.shards() == {0: None, 1: 0, 2: 1}
    assert len(scene.orders) == 1
    scene.dead = ("host2:1000",)
    scene.restart_controller()
    for index in range(3):
        scene.arrive(index)
    assert len(scene.orders) == 2


def test_a_list_whose_servers_answer_but_do_not_come_is_given_up(tmp_path):
    scene = Scene(tmp_path, num_ps=1, num_redundant_ps=1)
    scene.ps_list.write(("elsewhere:1",))
    scene.restart_controller()
    scene.arrive(0)
    assert scene.shards() == {0: None}
    scene.pass_time(31.0)
    scene.pass_time(0.5)
    assert scene.shards() == {0: 0}


def test_after_a_restart_of_the_controller_shards_stay_with_those_that_hold_them(tmp_path):
    scene = Scene(tmp_path, num_ps=2, num_redundant_ps=1)
    scene.arrive(1)
    scene.arrive(2)
    scene.restart_controller()
    scene.arrive(0)
    assert scene.arrive(2, held_shard=1).shard == 1
    scene.pass_time(1.0)
    assert scene.arrive(1, held_shard=0).shard == 0
    assert scene.shards() == {0: None, 1: 0, 2: 1}


def test_an_override_of_somebody_who_is_not_here_is_said_once(tmp_path, caplog):
    caplog.set_level("INFO")
    scene = Scene(tmp_path, num_ps=1, num_extra_ps=1, override="elsewhere:1")
    for index in range(2):
        scene.arrive(index)
    scene.pass_time(1.0)
    assert caplog.text.count("waiting: --ps-override names elsewhere:1, not here yet") == 1


def test_a_choice_without_the_answers_of_all_workers_says_so(tmp_path, caplog):
    scene = Scene(tmp_path, num_ps=1, num_extra_ps=1, num_workers=2)
    scene.sessions = [1, 2]
    for index in range(2):
        scene.arrive(index)
    scene.answer(1, **{"host0:1000": 1.0, "host1:1000": 2.0})
    scene.pass_time(1000.0)
    assert "1 of 2 workers have measured in time" in caplog.text


@pytest.mark.golden("G7")
def test_an_override_wins_and_nothing_is_measured(tmp_path):
    scene = Scene(tmp_path, num_ps=2, num_extra_ps=1, override="2,host0:1000")
    for index in range(3):
        scene.arrive(index)
    assert scene.orders == []
    assert scene.shards() == {0: 1, 1: None, 2: 0}
    assert scene.ps_list.read() == ("host2:1000", "host0:1000")
    with pytest.raises(InvalidSetting, match="ps-9 is not here"):
        ps_ranking.overridden("9", {0: "h:1"})


@pytest.mark.golden("G7")
@pytest.mark.parametrize("fastest", [0, 1])
def test_one_of_two_ps_is_chosen_by_what_the_workers_measured(tmp_path, fastest):
    scene = Scene(tmp_path, num_ps=1, num_extra_ps=1, num_workers=2)
    scene.sessions = [1, 2]
    for index in range(2):
        scene.arrive(index)
    # The mean of both workers decides, whatever one of them alone would say.
    scene.answer(1, **{f"host{fastest}": 1.0, f"host{1 - fastest}": 2.0})
    assert scene.shards() == {0: None, 1: None}
    scene.answer(2, **{f"host{fastest}": 9.0, f"host{1 - fastest}": 2.0})
    assert scene.shards() == {fastest: 0, 1 - fastest: None}
    assert scene.ps_list.read() == (f"host{fastest}:1000",)


def test_the_best_ps_of_a_host_is_credited_with_the_slower_ones_of_it():
    listed = ("a:1", "a:2", "b:1", "[::1]:1", "[::1]:2")
    rates = {"a:1": 30, "a:2": 30, "b:1": 50, "[::1]:1": 20, "[::1]:2": 25}
    # a:2 counts 60, b:1 50, [::1]:2 45, a:1 30, [::1]:1 20
    assert ps_ranking.best(rates, listed, 5) == ("a:2", "b:1", "[::1]:2", "a:1", "[::1]:1")
    assert ps_ranking.best(rates, listed, 2) == ("a:2", "b:1")
    assert ps_ranking.best({}, ("a:1", "b:1"), 1) == ("a:1",)  # nobody answered: as listed


def test_when_the_job_ends_those_that_stand_by_are_told_why(tmp_path):
    scene = Scene(tmp_path, num_ps=1, num_redundant_ps=1)
    scene.arrive(0)
    standing_by = scene.arrive(1)
    scene.formation.dismiss("all workers finished")
    assert scene.formation.wait(standing_by) is None
    assert standing_by.reason == "all workers finished"
    late = scene.arrive(1)
    assert (scene.formation.wait(late), late.reason) == (None, "all workers finished")


@pytest.mark.golden("G32")
def test_the_ps_list_survives_a_round_trip_and_garbage_is_no_list(tmp_path, caplog):
    assert PsListFile(tmp_path, "uuid").path == tmp_path / "ps_cluster_dir" / "uuid"
    assert PsListFile(tmp_path, "../up").path == PsListFile(tmp_path).path
    ps_list = PsListFile(tmp_path)
    assert ps_list.path == tmp_path / "ps_cluster_dir" / "ps_info"
    assert ps_list.read() == ()
    ps_list.write(("a:1", "[::1]:2"))
    assert ps_list.path.read_text() == "a:1,[::1]:2"
    assert ps_list.read() == ("a:1", "[::1]:2")
    for garbage in (b"\xff\xfe", b"not an address", b"a:1,b"):
        ps_list.path.write_bytes(garbage)
        assert ps_list.read() == ()
    assert len(caplog.records) == 3

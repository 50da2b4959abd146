"""A ps that stands by takes the place of one that was killed, while a job trains to its end."""

import re

import pytest

from support.processes import Processes
from support.waiting import wait_until

STEPS, BATCH_SIZE = 1600, 256  # some seconds: the victim dies before the job ends


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as processes:
        yield processes


@pytest.mark.timeout(600)
def test_a_redundant_ps_takes_over_the_shard_of_a_killed_one_and_the_job_reaches_its_end(processes):
    members = {
        "controller": processes.start_controller(
            num_ps=2, num_redundant_ps=1, num_workers=2, suspect_s=2, takeover_s=1, silence_s=60
        )
    }
    for index in range(3):
        members[f"ps-{index}"] = processes.start_member("ps", index)
    for index in range(2):
        task = {"batch_size": BATCH_SIZE, "num_examples": BATCH_SIZE * STEPS, "heartbeat_s": 0.1}
        members[f"worker-{index}"] = processes.start_member("worker", index, **task)
    job = processes.job(60)
    before = wait_until(lambda: (now := job.status()).global_step > 20 and now, 120, "training")
    spare, victim = ({c.shard: c.index for c in before.candidates}[shard] for shard in (None, 1))
    saved = job.save()
    members[f"ps-{victim}"].kill()
    after = wait_until(
        lambda: (now := job.status()).epoch > before.epoch and now.phase == "running" and now,
        what="the next map",
    )
    assert {c.index: c.shard for c in after.candidates}[spare] == 1
    assert after.members[1].restored.path == saved.path
    # It is back too late, and stands by in its turn
    members[f"ps-{victim}"] = processes.start_member("ps", victim)
    controller = members["controller"]
    statuses = {name: process.wait(240) for name, process in members.items()}
    assert statuses == dict.fromkeys(statuses, 0), controller.output()
    epochs = re.findall(r"routing epoch=(\d+) ps=(\S+)", controller.output())
    assert [int(epoch) for epoch, _ in epochs] == [before.epoch, before.epoch + 1]
    holders = [addresses.split(",") for _, addresses in epochs]
    assert holders[1] == [holders[0][0], members[f"ps-{spare}"].reported("address")]
    assert re.search(rf"job ended succeeded=True .* step={STEPS}\n", controller.output())

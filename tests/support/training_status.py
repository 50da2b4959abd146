"""What a controller says of a job that trains, for tests of what the terminal then shows."""

from megalith.control import BarrierStatus, ClusterStatus

TRAINING = ClusterStatus(
    address="h:0",
    model_dir="model",
    phase="running",
    epoch=1,
    is_stopped=False,
    global_step=40,
    last_checkpoint="",
    outcome="",
    reason="",
    results={},
    members=(),
    job="job",
    up_s=1.0,
    barrier=BarrierStatus(0, False, "", ""),
    last_save=None,
    next_save_s=None,
    next_save_step=None,
)

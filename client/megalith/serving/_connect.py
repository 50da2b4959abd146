"""Finding the replicas of a job."""

from collections.abc import Sequence

from megalith.control.controller import Controller
from megalith.control.status import ReplicaStatus
from megalith.errors import InvalidRequest
from megalith.serving._asking import Asking
from megalith.serving._client import ServingClient
from megalith.serving._replica_pool import KnownReplica, ReplicaPool
from megalith.wire import channel

_LATE_S = 30.0  # a replica that has not reported for so long is not asked


def connect(
    model_dir: str | None = None,
    *,
    controller: str | None = None,
    replicas: Sequence[str] = (),
    timeout_s: float = 5.0,
    max_staleness_s: float = 0.0,
    hedge_after_s: float = 0.0,
    max_message_bytes: int = channel.DEFAULT_MAX_MESSAGE_BYTES,
) -> ServingClient:
    """A client of the replicas of a job.

    The replicas are found through the job's controller, whose `model_dir` or address is given. Or
    their addresses are given as `replicas`; those hold all ids. `max_staleness_s` refuses answers
    that are staler; 0 takes all. `hedge_after_s`: when a replica has not answered for so long,
    another one is asked as well, and the first answer counts; 0 = only when it fails.
    """
    ways = [model_dir is not None, controller is not None, bool(replicas)]
    if sum(ways) != 1:
        raise InvalidRequest("give one of model_dir, controller and replicas")

    if replicas:
        known_replicas = [KnownReplica(address) for address in replicas]
        known = ReplicaPool(lambda: known_replicas, max_message_bytes)
        asking = Asking(known, timeout_s, hedge_after_s)
        return ServingClient(known, asking, max_staleness_s, lambda: None)

    job = Controller(controller, model_dir, timeout_s)

    def find() -> list[KnownReplica]:
        status = job.status()
        return [_known(replica) for replica in status.replicas if _is_there(replica)]

    pool = ReplicaPool(find, max_message_bytes)
    asking = Asking(pool, timeout_s, hedge_after_s)
    return ServingClient(pool, asking, max_staleness_s, job.close)


def _is_there(replica: ReplicaStatus) -> bool:
    has_reported = replica.silent_s < _LATE_S
    return replica.report.is_ready and has_reported


def _known(replica: ReplicaStatus) -> KnownReplica:
    report = replica.report
    return KnownReplica(report.address, report.share_index, report.share_count)

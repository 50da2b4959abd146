"""What a ps remembers of applied writes, as an increment keeps it, and the way back."""

from megalith.checkpoint.files.applied import AppliedWrite, AppliedWrites, ClientWrites
from megalith.ps.store.remembered_client import WriteOutcome
from megalith.ps.store.replay import AppliedPushes
from megalith.ps.store.writes import WriteReply

_WITHOUT_ANSWER = ("assign", "assign_add")  # a repetition needs nothing but that it was done


def dump(applied: AppliedPushes[WriteReply], run_id: str) -> AppliedWrites:
    """All that is remembered. Answers are left out, except that there was one."""
    clients = []
    for (client_id, incarnation), outcomes in applied.outcomes().items():
        writes: list[AppliedWrite] = []
        for sequence in sorted(outcomes):
            writes.append(_write(sequence, outcomes[sequence]))

        client = ClientWrites(client_id, incarnation, tuple(writes))
        clients.append(client)

    return AppliedWrites(run_id, tuple(clients), applied.has_forgotten)


def load(applied: AppliedPushes[WriteReply], saved: AppliedWrites) -> None:
    """Go on with what another ps has remembered."""
    for client in saved.clients:
        outcomes = {write.sequence: _outcome(write) for write in client.writes}
        applied.restore(client.client_id, client.incarnation, outcomes)

    applied.take_over(saved.has_forgotten)


def _write(sequence: int, outcome: WriteOutcome[WriteReply]) -> AppliedWrite:
    kind = outcome.reply[0] if outcome.reply is not None else ""
    return AppliedWrite(sequence, kind, outcome.lost)


def _outcome(write: AppliedWrite) -> WriteOutcome[WriteReply]:
    if write.lost:
        return WriteOutcome(lost=write.lost)
    if write.kind == "push":
        return WriteOutcome(("push", None))  # it is answered with the values of now
    if write.kind in _WITHOUT_ANSWER:
        return WriteOutcome((write.kind, []))

    outcome: WriteOutcome[WriteReply] = WriteOutcome()
    outcome.is_stripped = True
    return outcome

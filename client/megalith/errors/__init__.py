"""Every error that crosses a process boundary, by name.

    MegalithError
    |- InvalidRequest        the call itself is wrong; fix it
    |  |- InvalidSetting         a flag, variable or field of a configuration
    |  |- MalformedArray         bytes that are not what dtype and shape say
    |  |- ShapeMismatch          right bytes, wrong width or count
    |  |- DtypeMismatch          numbers of a kind that ids, rows or a variable are not
    |  |- NonFiniteValue         NaN or infinity in gradients or values
    |  |- FutureTime             data that claims to be from after tomorrow
    |  |- WrongSlot              ids of another slot than their feature's
    |  |- RanksDiffer            ranks that train together have other tables or settings
    |  |- BadData                training data that cannot be read, or not as asked
    |  '- DuplicateIds           ids, tables or variables repeated where they must be distinct
    |- NotFound              the thing named does not exist
    |  |- UnknownTable
    |  |- UnknownVariable
    |  |- UnknownBlob
    |  |- UnknownFeature         a feature or slice that the feature set does not have
    |  |- UnknownLayout
    |  |- UnknownTask            a replica has no task to predict with, or one that cannot
    |  '- CheckpointNotFound
    |- Conflict              it exists already, and differs
    |  |- BarrierAlreadyPlaced
    |  |- TableConflict
    |  |- IndexTaken
    |  |- ClientIdTaken          another client pushes under the same id
    |  |- ModelDirInUse
    |  |- AppMasterRunning       a live AppMaster keeps that application
    |  |- ProcessAlive           to be started again, but it runs
    |  '- SavepointRefused       one is under way, or the application has ended
    |- WrongPlace            right call, wrong process
    |  |- ShardNotOwned          refresh routing, then retry
    |  |- NotInCluster           an index or count that does not fit the cluster
    |  |- ApplicationEnded       it ended, and otherwise than this call wants
    |  |- NotSupervised          nobody is there who could start a process
    |  |- SequenceExpired        a push older than what the server remembers
    |  |- WrongRun               the client belongs to another run of a job; connect anew
    |  |- ReadOnlyTable          a table for serving takes no gradients; send them to the ps
    |  '- ChangesForgotten       more ids changed than the delta log holds; copy all rows
    |     '- ChangesNotNoted         a table has no delta log; no full copy changes that
    |- AccessDenied          not allowed, or not by this token
    |- StaleEpoch            routed by an old map; redo the whole call with a new one
    |- Unavailable           not now; retry with backoff
    |  |- NotReady               starting, draining or waiting for routing
    |  |  '- RunUndecided            a new controller waits for members of the last run
    |  |- TooStale               a replica has not heard of all changes for too long; ask another
    |  |- PeerUnreachable        nobody answers at the address
    |  '- DiscoveryFailed        the discovery back end does not answer, or not as it should
    |- DeadlinePassed        no answer within the time given
    |- LimitExceeded         more than a limit allows
    |  |- Overloaded             too much at once, and only for now; retry with backoff
    |  '- MessageTooLarge
    |- OutcomeUnknown        a write was sent and not answered; the client's next write finds out
    |  '- OutcomeLost            nobody will know: the ps was replaced, or failed half-way
    |- SaveFailed            a checkpoint could not be written; it does not exist
    |  |- ShardLost              a ps went away meanwhile; save again
    |  '- SaveTimedOut           a ps did not finish in time; look at its storage
    |- CheckpointDamaged     a checkpoint that cannot be trusted; an operator looks
    |- RankFailed            another rank failed, so that none of them can go on
    |  '- RankSilent             another rank does not take part in a call within its time
    '- InternalError         unforeseen; the traceback is in the server's log

Domain code raises these, `runtime` turns them into gRPC statuses, the client turns them back into
the same class.
"""

from collections.abc import Iterable


class MegalithError(Exception):
    """Base of all of them.

    `code` is stable across versions and travels in the trailing metadata.
    """

    code = "error"
    retry_for_s = 0.0  # how long the cause may still go away by itself; travels too
    # A server's own; False: the transport broke, and what the server made of the call is not known
    is_answer = True


class InvalidRequest(MegalithError):
    """The call can never succeed as it is."""

    code = "invalid_request"


class InvalidSetting(InvalidRequest):
    """A setting has a value that it cannot have, or no setting has that name."""

    code = "invalid_setting"


class MalformedArray(InvalidRequest):
    """The bytes of an array do not fit the declared dtype and shape."""

    code = "malformed_array"


class ShapeMismatch(InvalidRequest):
    """An array has another width or count than the table, variable or request asks for."""

    code = "shape_mismatch"


class DtypeMismatch(InvalidRequest):
    """An array has a dtype that cannot become that of ids, rows or the variable without loss."""

    code = "dtype_mismatch"


class NonFiniteValue(InvalidRequest):
    """A gradient or value holds NaN or infinity."""

    code = "non_finite_value"


class FutureTime(InvalidRequest):
    """The time of the data is more than a day ahead of the server's clock."""

    code = "future_time"


class WrongSlot(InvalidRequest):
    """An id whose slot bits are not those of the feature that it was given for."""

    code = "wrong_slot"


class RanksDiffer(InvalidRequest):
    """Ranks that train together are not at the same step, or have other tables or settings."""

    code = "ranks_differ"


class BadData(InvalidRequest):
    """A file of training data is missing, damaged or changed, or a column is not what was said."""

    code = "bad_data"


class DuplicateIds(InvalidRequest):
    """Something occurs twice in a request where it must be distinct."""

    code = "duplicate_ids"


class NotFound(MegalithError):
    """The thing named does not exist."""

    code = "not_found"


class UnknownTable(NotFound):
    """No table of that name on this server."""

    code = "unknown_table"


class UnknownVariable(NotFound):
    """No variable of that name on this server."""

    code = "unknown_variable"


class UnknownBlob(NotFound):
    """No blob of that name on the server that owns the name."""

    code = "unknown_blob"


class UnknownFeature(NotFound):
    """No feature of that name in the feature set, or no such slice in the feature."""

    code = "unknown_feature"


class UnknownLayout(NotFound):
    """No layout of that name in the feature set."""

    code = "unknown_layout"


class UnknownTask(NotFound):
    """A replica does not know what was trained, or the task says nothing of single examples."""

    code = "unknown_task"


class CheckpointNotFound(NotFound):
    """No complete checkpoint at that path."""

    code = "checkpoint_not_found"


class Conflict(MegalithError):
    """Something of that identity exists already."""

    code = "conflict"


class BarrierAlreadyPlaced(Conflict):
    """Training is stopped already."""

    code = "barrier_already_placed"


class TableConflict(Conflict):
    """A table or variable of that name exists with another configuration."""

    code = "table_conflict"


class IndexTaken(Conflict):
    """A live process of the same role holds that index."""

    code = "index_taken"


class ClientIdTaken(Conflict):
    """Another client pushes under the same client id.

    Its sequence numbers would be taken for repeated ones.
    """

    code = "client_id_taken"


class ModelDirInUse(Conflict):
    """That model directory is another job's.

    A controller serves it, or a save would change what that job starts from.
    """

    code = "model_dir_in_use"


class AppMasterRunning(Conflict):
    """A live AppMaster keeps the state of that application."""

    code = "appmaster_running"


class ProcessAlive(Conflict):
    """A process that is to be started again runs."""

    code = "process_alive"


class SavepointRefused(Conflict):
    """The AppMaster takes no savepoint now: one is under way, or the application has ended."""

    code = "savepoint_refused"


class WrongPlace(MegalithError):
    """The call is sound, but not here or not now."""

    code = "wrong_place"


class ShardNotOwned(WrongPlace):
    """An id or variable of the request belongs to another ps."""

    code = "shard_not_owned"


class NotInCluster(WrongPlace):
    """An index or a count that does not fit the cluster the controller runs."""

    code = "not_in_cluster"


class ApplicationEnded(WrongPlace):
    """The application has ended otherwise than this call wants, or before it could be asked."""

    code = "application_ended"


class NotSupervised(WrongPlace):
    """Nobody has told the AppMaster of processes that it could have started again."""

    code = "not_supervised"


class SequenceExpired(WrongPlace):
    """A push so old that the server no longer knows whether it was applied."""

    code = "sequence_expired"


class WrongRun(WrongPlace):
    """The client belongs to another run than the one at this address.

    Its rows are not those of that run.
    """

    code = "wrong_run"


class AccessDenied(MegalithError):
    """The caller may not do this; on the bulk lane, its token is not of this server's life."""

    code = "access_denied"


class ReadOnlyTable(WrongPlace):
    """A table for serving was asked for what only a training table does."""

    code = "read_only_table"


class ChangesForgotten(WrongPlace):
    """A reader of a delta log is behind what the log still holds; it needs a copy of all rows."""

    code = "changes_forgotten"


class ChangesNotNoted(ChangesForgotten):
    """A table has `touched_capacity` 0, so nobody ever knows which of its rows have changed."""

    code = "changes_not_noted"


class StaleEpoch(MegalithError):
    """The request was routed by an older map than the server has."""

    code = "stale_epoch"


class Unavailable(MegalithError):
    """The same call may succeed later."""

    code = "unavailable"


class NotReady(Unavailable):
    """The server is starting, draining, or has not seen the routing map that the request names."""

    code = "not_ready"


class RunUndecided(NotReady):
    """A controller has just started and does not know yet whether the run of the last one goes on.

    Until it knows, parameter servers of that run may be used as if there were no controller.
    """

    code = "run_undecided"


class TooStale(Unavailable):
    """A replica is staler than its caller allows. Another one may be fresher."""

    code = "too_stale"


class PeerUnreachable(Unavailable):
    """Nobody answers at an address."""

    code = "peer_unreachable"


class DiscoveryFailed(Unavailable):
    """ZooKeeper, Consul or the shared directory does not answer.

    Or it answers and does not show what was registered.
    """

    code = "discovery_failed"


class DeadlinePassed(MegalithError):
    """No answer within the caller's deadline; whether the call took effect is not known."""

    code = "deadline_passed"


class LimitExceeded(MegalithError):
    """More than the server takes at once."""

    code = "limit_exceeded"


class Overloaded(LimitExceeded):
    """A server has too much under way to take this call as well. Nothing of the call was applied.

    Try again later.
    """

    code = "overloaded"


class MessageTooLarge(LimitExceeded):
    """A request or reply above the message limit.

    Send fewer ids per call or raise the limit on both sides.
    """

    code = "message_too_large"


class OutcomeUnknown(MegalithError):
    """A write reached some servers, or may have, and not all have answered in time.

    It stays under way: the client's next write, `wait_for_last_write` or `close` asks for its
    outcome under the same sequence first, so nothing is applied twice. Sending the same content as
    a new write would apply it again.
    """

    code = "outcome_unknown"


class OutcomeLost(OutcomeUnknown):
    """Nobody will ever know whether a part of a write was applied.

    Its ps was replaced, or failed half-way.

    It is not sent again. The parts of other servers are applied.
    """

    code = "outcome_lost"


class SaveFailed(MegalithError):
    """A checkpoint was not completed. Nothing refers to it; the previous one stands."""

    code = "save_failed"


class ShardLost(SaveFailed):
    """A ps was lost while it wrote its shard; a save succeeds again once it is replaced."""

    code = "shard_lost"


class SaveTimedOut(SaveFailed):
    """A ps did not finish its shard within --save-timeout-s; it may be writing still."""

    code = "save_timed_out"


class CheckpointDamaged(MegalithError):
    """A checkpoint's files do not match its manifest."""

    code = "checkpoint_damaged"


class RankFailed(MegalithError):
    """Another rank has failed, and says why. No rank goes on without it."""

    code = "rank_failed"


class RankSilent(RankFailed):
    """Another rank is dead or stuck: it did not take part in a call in time."""

    code = "rank_silent"


class InternalError(MegalithError):
    """Anything unforeseen."""

    code = "internal"


def some_of(names: Iterable[str], limit: int = 8) -> str:
    """Names for a message: the first ones in order, and how many more there are."""
    known = sorted(names)
    if len(known) <= limit:
        return str(known)

    rest = len(known) - limit
    return f"{known[:limit]} and {rest} more"


def all_errors(base: type[MegalithError] = MegalithError) -> list[type[MegalithError]]:
    """Every error class of this module, base first."""
    found = [base]
    for child in base.__subclasses__():
        if child.__module__ == __name__:
            found += all_errors(child)

    return found


def error_for(code: str) -> type[MegalithError]:
    """The class with that code; MegalithError for a code this version does not know."""
    for error in all_errors():
        if error.code == code:
            return error

    return MegalithError

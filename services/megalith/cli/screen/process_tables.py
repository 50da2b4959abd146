"""What a status shows of each process, and how fresh the tables in replicas are."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.markup import escape

from megalith.cli.screen.columns import Column, fitted
from megalith.cli.screen.words import duration, size
from megalith.control import (
    ClusterStatus,
    MemberStatus,
    PsCandidate,
    ReplicaStatus,
    TableFreshness,
)

_LATE_S = 3.0  # a heart-beat older than this is shown in yellow
_LONG_S = 100.0  # the age of data may be days
_SILENT_S = 10.0  # a replica that has not reported for so long is shown as silent
_UNKNOWN = "-"  # in place of a figure that nobody reports

# In the order in which the rows below have their figures
_PROCESS = (
    Column("process", is_figure=False),
    Column("address", goes=1, is_figure=False),
    Column("state", is_figure=False),
)
_PS = (
    *_PROCESS,
    Column("rows"),
    Column("table"),
    Column("memory"),
    Column("buckets", goes=2),
    Column("req/s"),
    Column("p99", goes=3),
    Column("heard", goes=4),
)
_CANDIDATES = (*_PROCESS, Column("shard"), Column("measured rows/s"))
_WORKERS = (
    *_PROCESS,
    Column("step", goes=2),
    Column("batches"),
    Column("examples/s"),
    Column("loss"),
    Column("heard", goes=3),
)
_REPLICAS = (
    *_PROCESS,
    Column("rows"),
    Column("table"),
    Column("share", goes=2),
    Column("stale"),
    Column("fresh p50", goes=3),
    Column("fresh p99"),
    Column("heard", goes=4),
)
_FRESHNESS = (
    Column("table", is_figure=False),
    Column("fresh p50"),
    Column("fresh p99"),
    Column("event p50", goes=1),
    Column("event p99"),
)
_MOST_TABLES = 8  # of which the freshness is shown; --json has all


def process_tables(status: ClusterStatus, width: int) -> list[RenderableType]:
    """The tables that have rows, `width` cells wide; the one of the ps in any case."""
    parts: list[RenderableType] = []

    ps = [_ps_row(member, status) for member in status.members if member.role == "ps"]
    parts.append(fitted(_PS, ps, width))

    candidates = [_candidate_row(candidate) for candidate in status.candidates]
    if candidates:
        parts.append(fitted(_CANDIDATES, candidates, width))

    workers = [_worker_row(member) for member in status.members if member.role == "worker"]
    if workers:
        parts.append(fitted(_WORKERS, workers, width))

    replicas = [_replica_row(replica) for replica in status.replicas]
    if replicas:
        parts.append(fitted(_REPLICAS, replicas, width))

        tables = _freshness_rows(status.replicas)
        if tables:
            parts.append(fitted(_FRESHNESS, tables, width))

    return parts


def _ps_row(member: MemberStatus, status: ClusterStatus) -> list[str]:
    memory = size(member.resident_bytes)
    if member.memory_limit_bytes:
        memory += f"/{size(member.memory_limit_bytes)}"

    requests = f"{member.requests_per_s:,.0f}"
    slowest = f"{member.p99_s * 1e3:.1f} ms"
    is_heard = member.standing == "alive"
    return [
        process_of(member, status),
        member.address,
        _state(member),
        f"{member.rows:,}",
        size(member.bytes),
        memory,
        str(member.buckets),
        requests if is_heard else _UNKNOWN,
        slowest if is_heard else _UNKNOWN,
        _heard(member),
    ]


def process_of(member: MemberStatus, status: ClusterStatus) -> str:
    """The process that holds a shard; where some stand by, that may be one of another index."""
    for candidate in status.candidates:
        if candidate.shard == member.index:
            return candidate.name

    return member.name


def _candidate_row(candidate: PsCandidate) -> list[str]:
    state = "[green]chosen[/green]"
    shard = str(candidate.shard)
    if candidate.shard is None:
        state = "[yellow]stands by[/yellow]"
        shard = _UNKNOWN

    if not candidate.is_connected:
        state = "[red]lost[/red]"

    rate = f"{candidate.rows_per_s:,.0f}" if candidate.rows_per_s else _UNKNOWN
    return [candidate.name, candidate.address, state, shard, rate]


def _worker_row(member: MemberStatus) -> list[str]:
    batches = f"{member.position:,}"
    if member.total_batches:
        batches += f"/{member.total_batches:,}"

    is_training = member.standing == "alive" and not member.is_finished
    rate = f"{member.examples_per_s:,.0f}"
    return [
        member.name,
        member.address,
        _state(member),
        f"{member.global_step:,}",
        batches,
        rate if is_training else _UNKNOWN,
        f"{member.loss:.4f}" if member.position else _UNKNOWN,
        _heard(member),
    ]


def _replica_row(replica: ReplicaStatus) -> list[str]:
    report = replica.report
    state = "[green]serving[/green]" if report.is_ready else "[yellow]catching up[/yellow]"
    if replica.silent_s > _SILENT_S:
        state = "[red]silent[/red]"
    elif report.hold:
        state = f"[yellow]{escape(report.hold)}[/yellow]"
    elif report.is_ready and report.complaint:
        state = "[red]stale[/red]"

    return [
        report.name,
        report.address,
        state,
        f"{report.rows:,}",
        size(report.bytes),
        f"{report.share_index}/{report.share_count}" if report.share_count else "all",
        duration(report.staleness_s) if report.is_ready else _UNKNOWN,
        *_measured(report.freshness_p50_s, report.freshness_p99_s),
        f"{duration(replica.silent_s)} ago",
    ]


def _freshness_rows(replicas: Sequence[ReplicaStatus]) -> list[list[str]]:
    """The slowest tables, each as its slowest replica has it."""
    slowest: dict[str, TableFreshness] = {}
    for replica in replicas:
        for table in replica.report.tables:
            known = slowest.get(table.table)
            if known is None or _how_slow(table) > _how_slow(known):
                slowest[table.table] = table

    shown = sorted(slowest.values(), key=_how_slow, reverse=True)[:_MOST_TABLES]

    rows = []
    for table in sorted(shown, key=lambda each: each.table):
        updates = _measured(table.p50_s, table.p99_s)
        events = _measured(table.event_p50_s, table.event_p99_s)
        rows.append([escape(table.table), *updates, *events])

    left = len(slowest) - len(shown)
    if left:
        unknown = [_UNKNOWN] * 4
        rows.append([f"{left} faster ones", *unknown])

    return rows


def _how_slow(table: TableFreshness) -> tuple[float, float]:
    return table.p99_s, table.event_p99_s


def _measured(median_s: float, slowest_s: float) -> list[str]:
    if not slowest_s:
        return [_UNKNOWN, _UNKNOWN]

    return [_seconds(median_s), _seconds(slowest_s)]


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < _LONG_S else duration(seconds)


def _state(member: MemberStatus) -> str:
    if member.is_finished:
        return "finished"
    if member.standing in ("expected", "suspect"):
        return f"[yellow]{member.standing}[/yellow]"
    if member.standing != "alive":
        return "[red]dead[/red]"

    if member.complaint:
        return "[red]ill[/red]"
    if member.role == "ps":
        return "[green]ready[/green]" if member.is_ready else "[yellow]starting[/yellow]"

    return "[yellow]blocked[/yellow]" if member.is_blocked else "[green]training[/green]"


def _heard(member: MemberStatus) -> str:
    if not member.address:
        return _UNKNOWN

    text = f"{duration(member.silent_s)} ago"
    return f"[yellow]{text}[/yellow]" if member.silent_s > _LATE_S else text

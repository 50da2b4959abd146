"""What servers report about their tables and variables, added up."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from megalith.protos import parameter_server_pb2 as pb
from megalith.schema.table_counts import NAMES, TableCounts
from megalith.schema.variable_parts import count_of, variable_of


@dataclass(slots=True)
class TableStats(TableCounts):
    """One table on all servers together. Counts are since each server started."""

    # Servers without it, which were replaced since; create it again
    missing_on: tuple[int, ...] = ()
    # It came out of a checkpoint, and no program of this run has created it
    is_unclaimed: bool = False


@dataclass(frozen=True, slots=True)
class VariableStats:
    """One variable on all servers together. Counts are since each server started."""

    parts: int = 0  # that it is held in, each on a server
    # Gradients and summands, of one part each, that would have overflowed it or its optimizer's
    # state
    left_out: int = 0
    missing: int = 0  # parts that no server holds, since one was replaced; create it again


def by_table(answers: Iterable[pb.GetPsStatusResponse]) -> dict[str, TableStats]:
    """The sums over all servers by the names of the tables, in their order.

    The answers come in the order of the servers.
    """
    counts: dict[str, dict[str, int]] = {}
    holders: dict[str, set[int]] = {}
    unclaimed: set[str] = set()
    num_servers = 0

    for index, answer in enumerate(answers):
        num_servers += 1
        for table in answer.tables:
            if table.is_unclaimed:
                unclaimed.add(table.config.name)

            holders.setdefault(table.config.name, set()).add(index)
            held = counts.setdefault(table.config.name, dict.fromkeys(NAMES, 0))
            for name in NAMES:
                held[name] += getattr(table, name)

    everyone = set(range(num_servers))
    stats = {}
    for name in sorted(counts):
        missing_on = tuple(sorted(everyone - holders[name]))
        stats[name] = TableStats(
            **counts[name], missing_on=missing_on, is_unclaimed=name in unclaimed
        )

    return stats


def by_variable(answers: Iterable[pb.GetPsStatusResponse]) -> dict[str, VariableStats]:
    """The sums over all servers, by the names of the variables, in their order."""
    parts: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    of: dict[str, int] = {}

    for answer in answers:
        for held in answer.variables:
            name = variable_of(held)
            parts[name] += 1
            of[name] = count_of(held)
            left_out[name] += answer.variables_nonfinite.get(held, 0)

    return {
        name: VariableStats(parts[name], left_out[name], of[name] - parts[name])
        for name in sorted(parts)
    }

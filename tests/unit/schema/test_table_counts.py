from megalith.client import TableStats
from megalith.protos import parameter_server_pb2 as pb
from megalith.schema import table_counts


def test_what_a_table_counts_is_what_a_ps_reports_and_the_sdk_shows():
    fields = {each.name for each in pb.TableStatus.DESCRIPTOR.fields}
    assert fields - {"config", "is_unclaimed"} == set(table_counts.NAMES)
    assert TableStats.__match_args__ == (
        *table_counts.NAMES,
        "missing_on",
        "is_unclaimed",
        "over_budget_on",
        "features",
    )


def test_the_metrics_of_a_table_are_those_that_only_grow():
    assert list(table_counts.HELP) == [
        "created",
        "refused",
        "barred",
        "nonfinite",
        "expired",
        "touched_overflow",
    ]

"""A cluster that the tests of a module share.

A module whose tests change or stop servers has fixtures of its own.
"""

import pytest

from support.servers import Servers


@pytest.fixture(scope="module")
def servers(request, tmp_path_factory):
    """Two parameter servers, or as many as the module says in NUM_PS, and no workers."""
    num_ps = getattr(request.module, "NUM_PS", 2)
    with Servers(tmp_path_factory.mktemp("model"), num_ps=num_ps) as servers:
        servers.start_all()
        yield servers


@pytest.fixture
def cluster(servers):
    """A client of the test's own."""
    return servers.connect()


@pytest.fixture
def name(request):
    """For a table or variable of the test's own."""
    return request.node.name

import pytest
import requests

from megalith.discovery import consul_agent
from megalith.errors import DiscoveryFailed


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            requests.ConnectionError(
                "HTTPConnectionPool(host='127.0.0.1', port=1): Max retries exceeded with url: /v1/x "
                "(Caused by NewConnectionError(\"HTTPConnection(host='127.0.0.1', port=1): "
                'Failed to establish a new connection: [Errno 111] Connection refused"))'
            ),
            "[Errno 111] Connection refused",
        ),
        (
            requests.ReadTimeout(
                "HTTPConnectionPool(host='h', port=1): Read timed out. (read timeout=5)"
            ),
            "Read timed out. (read timeout=5)",
        ),
        (requests.HTTPError("500: no cluster leader"), "500: no cluster leader"),
    ],
)
def test_an_agent_that_is_not_reached_is_named_with_the_reason_alone(error, said):
    with pytest.raises(DiscoveryFailed) as raised, consul_agent.errors_translated("127.0.0.1:1"):
        raise error

    assert str(raised.value) == f"Consul agent 127.0.0.1:1: {said}"

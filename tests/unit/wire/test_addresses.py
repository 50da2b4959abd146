import pytest

from megalith.errors import InvalidRequest
from megalith.wire import addresses


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.0.0.1", "10.0.0.1:5"), ("::1", "[::1]:5"), ("example.org", "example.org:5")],
)
def test_join_brackets_ipv6_only(host, expected):
    assert addresses.join(host, 5) == expected


@pytest.mark.golden("G25")
def test_the_platform_says_the_local_host():
    assert addresses.local_host({"YARN_INET_ADDR": "1.2.3.4"}) == "1.2.3.4"
    assert (
        addresses.local_host(
            {"CLOUDNATIVE_INET_ADDR": "1.2.3.4,5.6.7.8", "YARN_INET_ADDR": "9.9.9.9"}
        )
        == "1.2.3.4"
    )


def test_without_a_platform_the_own_name_resolves():
    assert addresses.local_host({})


def test_a_wildcard_is_not_told_to_others():
    assert addresses.advertised_host("0.0.0.0", "") not in ("", "0.0.0.0")
    assert addresses.advertised_host("0.0.0.0", "ps-0") == "ps-0"
    assert addresses.advertised_host("127.0.0.1", "") == "127.0.0.1"


@pytest.mark.golden("G2")
def test_addresses_are_put_together_and_taken_apart():
    for host, address in {
        "localhost": "localhost:10",
        "127.0.0.1": "127.0.0.1:10",
        "::1": "[::1]:10",
    }.items():
        assert addresses.join(host, 10) == address
        assert addresses.split(address) == (host, 10)
        assert addresses.host_of(address) == host
    assert addresses.is_ipv6("::1")
    assert not addresses.is_ipv6("localhost")
    assert addresses.local_ip()


@pytest.mark.parametrize(
    "nonsense", ["", "host", ":1", "host:0", "host:-1", "host:65536", "::1:80", "[::1]", "h:٣"]
)
def test_what_is_not_an_address_is_refused(nonsense):
    with pytest.raises(InvalidRequest, match="Invalid addr"):
        addresses.split(nonsense)


def test_the_platform_says_whether_there_is_only_ipv6():
    assert not addresses.is_ipv6_only({"MY_HOST_IP": "10.0.0.1", "MY_HOST_IPV6": "fd00::1"})
    assert not addresses.is_ipv6_only({"MY_POD_IP": "10.0.0.1"})
    assert addresses.is_ipv6_only({"MY_HOST_IPV6": "fd00::1"})
    assert not addresses.is_ipv6_only({})

import pytest

from megalith.runtime import addresses


@pytest.mark.parametrize(
    ("host", "expected"), [("10.0.0.1", "10.0.0.1:5"), ("::1", "[::1]:5"), ("example.org", "example.org:5")]
)
def test_join_brackets_ipv6_only(host, expected):
    assert addresses.join(host, 5) == expected


def test_golden_g25_the_platform_says_the_local_host():
    assert addresses.local_host({"YARN_INET_ADDR": "1.2.3.4"}) == "1.2.3.4"
    assert addresses.local_host({"CLOUDNATIVE_INET_ADDR": "1.2.3.4,5.6.7.8", "YARN_INET_ADDR": "9.9.9.9"}) == "1.2.3.4"


def test_without_a_platform_the_own_name_resolves():
    assert addresses.local_host({})


def test_a_wildcard_is_not_told_to_others():
    assert addresses.advertised_host("0.0.0.0", "") not in ("", "0.0.0.0")
    assert addresses.advertised_host("0.0.0.0", "ps-0") == "ps-0"
    assert addresses.advertised_host("127.0.0.1", "") == "127.0.0.1"

"""The URL that says what the flags before it said: for the message about a flag that is gone."""

import os
from collections.abc import Mapping
from urllib.parse import quote

from megalith.discovery.registry import BY_SCHEME

FLAGS = ("discovery_dir", "zk_servers", "consul", "static_cluster", "discovery_ttl_s")

# What --discovery was called with beside each flag. The time applied to two of them.
_KIND_BY_FLAG = {
    "discovery_dir": "file",
    "zk_servers": "zookeeper",
    "consul": "consul",
    "static_cluster": "static",
}
_DEFAULT_ZOOKEEPER = "127.0.0.1:2181"


def successor(given: Mapping[str, str]) -> str:
    """The URL for these texts, by the name of the flag or variable that said them.

    `discovery` may be a URL already, a name such as `zookeeper`, or missing.
    """
    discovery = given.get("discovery", "")
    if ":" in discovery:
        return _with_ttl(discovery, given)

    return _with_ttl(_url(_kind(discovery, given), given), given)


def _kind(discovery: str, given: Mapping[str, str]) -> str:
    if discovery and discovery != "none":
        return discovery

    for flag, kind in _KIND_BY_FLAG.items():
        if given.get(flag):
            return kind

    return "zookeeper"  # only a time was given, and ZooKeeper is where most had to give it


def _url(kind: str, given: Mapping[str, str]) -> str:
    match kind:
        case "zookeeper":
            return f"zookeeper://{given.get('zk_servers') or _DEFAULT_ZOOKEEPER}"
        case "consul":
            return _consul(given.get("consul", ""))
        case "file":
            return _file(given.get("discovery_dir", ""))
        case "static":
            return f"static:{given.get('static_cluster', '')}"

    return BY_SCHEME[kind].example if kind in BY_SCHEME else kind


def _consul(agent: str) -> str:
    if agent.startswith("/"):
        return f"consul+unix://{quote(agent)}"
    return f"consul://{agent}" if agent else "consul:"


def _file(directory: str) -> str:
    if not directory:
        return "file:"

    path = os.path.abspath(directory)
    return f"file://{quote(path)}"


def _with_ttl(url: str, given: Mapping[str, str]) -> str:
    ttl_s = given.get("discovery_ttl_s", "")
    is_default = ttl_s in ("", "0", "0.0")
    has_time = url.startswith(("zookeeper:", "consul"))
    if is_default or not has_time or "?" in url:
        return url

    return f"{url}?ttl_s={ttl_s}"

"""What a --discovery URL says, and what is said to whoever writes it wrongly."""

import pytest

from megalith.controller.config import ControllerConfig
from megalith.discovery import registry
from megalith.discovery.settings import DiscoverySettings
from megalith.errors import InvalidSetting
from megalith.ps.config import PsConfig
from megalith.runtime.joining.membership import MembershipSettings


def opener(url, job="", model_dir=""):
    return DiscoverySettings(discovery=url).opener(job, model_dir, {})


@pytest.mark.parametrize(
    ("url", "job", "expected"),
    [
        ("zookeeper://zk1:2181,zk2:2181/clicks", "", "clicks"),
        ("zookeeper://zk1:2181,zk2/", "clicks", "clicks"),
        ("zookeeper://[fd00::1]:2181,[fd00::2]/clicks?ttl_s=10", "clicks", "clicks"),
        ("consul://[::1]:8500/clicks?ttl_s=0.5", "", "clicks"),
        ("consul:///clicks", "", "clicks"),
        ("consul:", "clicks", "clicks"),
        ("consul+unix:///run/consul.sock", "clicks", "clicks"),
        ("file:///a%20b", "clicks", "clicks"),
        ("static:ps=h:1", "", ""),
        ("tf-config:", "", ""),
        ("mlp:", "", ""),
    ],
)
def test_the_url_names_the_job_or_leaves_it_to_the_flag(url, job, expected):
    assert opener(url, job).job == expected


@pytest.mark.parametrize("back_end", registry.BACK_ENDS, ids=lambda back_end: back_end.scheme)
def test_every_example_that_messages_show_is_right(back_end):
    assert opener(back_end.example, "" if "/job" in back_end.example else "j").url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("zookeeper:", "it names no server"),
        ("zookeeper:///clicks", "it names no server"),
        ("zookeeper://zk1:port/clicks", "'zk1:port' is not host or host:port"),
        ("zookeeper://fd00::1/clicks", "IPv6 address stands in brackets"),
        ("zookeeper://zk1/a/b", "the job 'a/b' is not a name"),
        ("zookeeper://zk1/clicks?ttl=3", "ttl is not an option of zookeeper, known are ttl_s"),
        ("zookeeper://zk1/clicks?ttl_s=nan", "ttl_s=nan is not above 0"),
        ("zookeeper://zk1/clicks?ttl_s=", "ttl_s= is not a number"),
        ("zookeeper://zk1/clicks?", r"after the \? there is no option=value"),
        ("consul://agent/clicks", "'agent' is not host:port"),
        ("consul+unix://run/consul.sock", "begins with a third slash"),
        ("file://shared/directory", "a directory has a third slash"),
        ("file:directory", "directory is not absolute"),
        ("file:///a?ttl_s=3", "ttl_s is not an option of file, it takes none"),
        ("tf-config:x", "'x' has no meaning here"),
        ("mlp://host", "no server is asked"),
    ],
)
def test_a_wrong_url_is_named_with_a_right_one(url, why):
    scheme = url.partition(":")[0]
    with pytest.raises(InvalidSetting, match=why) as raised:
        opener(url, "clicks")
    assert registry.BY_SCHEME[scheme].example in str(raised.value)


def test_two_different_jobs_are_refused():
    with pytest.raises(InvalidSetting, match="its job is clicks, but --job=other is given as well"):
        opener("zookeeper://zk1/clicks", "other")


def test_the_job_of_the_url_is_the_job_of_the_process():
    settings = DiscoverySettings(discovery="zookeeper://zk1/clicks")
    assert PsConfig(membership=MembershipSettings(), discovery=settings).membership.job == "clicks"
    config = ControllerConfig(model_dir="m", num_ps=1, num_workers=0, discovery=settings)
    assert config.job == "clicks"


def test_a_directory_is_complete_for_a_process_without_a_model_directory(tmp_path):
    assert opener("file:", model_dir=f"{tmp_path}/a b").url == f"file://{tmp_path}/a%20b/discovery"


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("zookeeper", "zookeeper://127.0.0.1:2181"),
        ("consul", "consul:"),
        ("file", "file:"),
        ("tf-config", "tf-config:"),
    ],
)
def test_a_name_that_is_no_url_is_refused_with_the_url(url, instead):
    with pytest.raises(InvalidSetting) as raised:
        DiscoverySettings(discovery=url)
    assert str(raised.value) == f"--discovery={url} is not a URL; write --discovery {instead}"

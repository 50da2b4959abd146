"""What the file of a back end offers besides its Discovery: how a URL becomes one.

Each file in this folder that `registry.py` names has a function

    def opener(url: DiscoveryUrl, site: Site) -> Opener

which reads the URL and raises InvalidSetting if it is wrong. It neither connects nor looks at the
platform's variables, because a job is checked on machines where its processes do not run.

A back end that prescribes who listens where also has a function

    def prescribe(cluster: AddressesByService, service: str, index: int) -> Prescription

which tells a process of a local job what the platform would tell it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from megalith.discovery.interface import Discovery

AddressesByService = Mapping[
    str, Sequence[str]
]  # addresses in the order of their indices, by service


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a back end may use besides its URL; each of the names may be empty.

    `given_job` is what --job says. `default_job` is the name of a job that is named nowhere.
    """

    given_job: str
    model_dir: str
    environ: Mapping[str, str]
    default_job: str = ""

    @property
    def job(self) -> str:
        """The name of the job for a back end whose URL does not say it."""
        return self.given_job or self.default_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """A back end whose URL has been read and found right.

    `url` opens the same back end in a process that knows no model directory. `job` is the name of
    the job, which the URL may say.
    """

    open: Callable[[], Discovery]
    url: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prescription:
    """What a platform tells one process: the URL for its --discovery, and variables."""

    url: str
    environ: Mapping[str, str] = field(default_factory=dict)

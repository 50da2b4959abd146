"""The discovery back ends that exist. A new one is its file, a line here, and its extra, if any."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from megalith.discovery.back_end import AddressesByService, Opener, Prescription, Site
from megalith.discovery.interface import Discovery
from megalith.discovery.url import DiscoveryUrl
from megalith.errors import InvalidSetting
from megalith.errors.extras import how_to_install


@dataclass(frozen=True, slots=True)
class BackEnd:
    """One scheme of --discovery: the module of this folder that serves it, and a right URL.

    `extra` is what pip must install for it. One that `is_prescribed` is told by the platform who
    listens where; in the others processes enter themselves.
    """

    scheme: str
    module: str
    example: str
    extra: str = ""
    is_prescribed: bool = False

    def load(self) -> ModuleType:
        """The module; ModuleNotFoundError if its extra is not installed."""
        return import_module(f"megalith.discovery.{self.module}")

    def opener(self, text: str, site: Site) -> Opener:
        """The back end at that URL, ready to be opened; InvalidSetting if the URL is wrong.

        A back end whose extra is missing can be named, but not opened.
        """
        url = DiscoveryUrl.parse(text, self.example)
        try:
            read: Callable[[DiscoveryUrl, Site], Opener] = self.load().opener
        except ModuleNotFoundError as error:
            if not self.extra:
                raise  # a mistake in the list below, not a missing extra
            return Opener(open=self._refuse_to_open(error), url=text, job=site.job)

        return read(url, site)

    def prescribe(self, cluster: AddressesByService, service: str, index: int) -> Prescription:
        """What the platform would tell that process; only for back ends that are prescribed."""
        tell: Callable[[AddressesByService, str, int], Prescription] = self.load().prescribe
        return tell(cluster, service, index)

    def _refuse_to_open(self, error: ModuleNotFoundError) -> Callable[[], Discovery]:
        def refuse() -> Discovery:
            raise InvalidSetting(
                f"--discovery={self.scheme} needs {error.name}: {how_to_install(self.extra, error)}"
            ) from error

        return refuse


BACK_ENDS = (
    BackEnd("file", "files", "file:///shared/directory"),
    BackEnd("zookeeper", "zookeeper", "zookeeper://zk1:2181,zk2:2181/job", "zookeeper"),
    BackEnd("consul", "consul", "consul://127.0.0.1:8500/job", "consul"),
    BackEnd("consul+unix", "consul", "consul+unix:///run/consul.sock", "consul"),
    BackEnd("tf-config", "tf_config", "tf-config:", is_prescribed=True),
    BackEnd("mlp", "mlp", "mlp:", is_prescribed=True),
    BackEnd("static", "static", "static:controller=h:1;ps=h:2,h:3;worker=h:4", is_prescribed=True),
)

BY_SCHEME = {back_end.scheme: back_end for back_end in BACK_ENDS}

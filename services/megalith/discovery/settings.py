"""Which discovery back end a process uses: the one setting about it."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from megalith.discovery import removed
from megalith.discovery.back_end import AddressesByService, Opener, Prescription, Site
from megalith.discovery.interface import Discovery
from megalith.discovery.registry import BY_SCHEME, BackEnd
from megalith.errors import InvalidSetting
from megalith.runtime.config.removed_settings import RemovedSettings
from megalith.runtime.config.sections import JOINING
from megalith.runtime.config.settings import setting

NONE = "none"
_EXAMPLE = BY_SCHEME["zookeeper"].example


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverySettings:
    """How processes find each other where --controller and the model directory do not say it."""

    SECTION: ClassVar = JOINING

    discovery: str = setting(
        f"How processes find each other: none, or a URL such as {_EXAMPLE}. "
        "docs/settings.md lists all of them.",
        NONE,
        replaces=RemovedSettings(removed.FLAGS, removed.successor),
    )

    def __post_init__(self) -> None:
        if self.is_used:
            self._back_end()

    @property
    def is_used(self) -> bool:
        return self.discovery != NONE

    @property
    def is_prescribed(self) -> bool:
        """Whether the platform says who listens where, instead of the processes themselves."""
        return self.is_used and self._back_end().is_prescribed

    def check(self, job: str, model_dir: str) -> str:
        """The name of the job, which the URL may say; otherwise `job`.

        InvalidSetting if the URL is wrong, or needs a name or directory that is not given.
        """
        if not self.is_used:
            return job

        return self.opener(job, model_dir).job

    def open(
        self, job: str, model_dir: str, environ: Mapping[str, str] = os.environ
    ) -> Discovery | None:
        """The back end, or None for "none". It may still be connecting.

        Its first use waits for that.
        """
        if not self.is_used:
            return None

        return self.opener(job, model_dir, environ).open()

    def open_prescribed(self, environ: Mapping[str, str] = os.environ) -> Discovery | None:
        """The back end if it is one that prescribes where processes listen; otherwise None."""
        return self.open("", "", environ) if self.is_prescribed else None

    def opener(
        self,
        job: str,
        model_dir: str,
        environ: Mapping[str, str] = os.environ,
        *,
        default_job: str = "",
    ) -> Opener:
        """The back end before it is opened; not for "none"."""
        site = Site(
            given_job=job,
            model_dir=model_dir,
            environ=environ,
            default_job=default_job,
        )
        return self._back_end().opener(self.discovery, site)

    def prescribe(self, cluster: AddressesByService, service: str, index: int) -> Prescription:
        """What the platform would tell that process; only for a back end that is prescribed."""
        return self._back_end().prescribe(cluster, service, index)

    def _back_end(self) -> BackEnd:
        return _back_end_of(self.discovery)


def _back_end_of(url: str) -> BackEnd:
    """The back end that serves this URL; InvalidSetting if there is none."""
    scheme, colon, _ = url.partition(":")
    back_end = BY_SCHEME.get(scheme)
    if back_end is None:
        schemes = ", ".join((NONE, *BY_SCHEME))
        raise InvalidSetting(
            f"--discovery={url}: expected one of {schemes}, written as a URL; "
            f"for example {_EXAMPLE}"
        )

    if not colon:
        instead = shlex.quote(removed.successor({"discovery": scheme}))
        raise InvalidSetting(f"--discovery={url} is not a URL; write --discovery {instead}")

    return back_end

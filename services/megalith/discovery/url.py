"""The URL of --discovery and its parts: `scheme://servers/path?option=value`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, unquote

from megalith.discovery.back_end import Site
from megalith.errors import InvalidRequest, InvalidSetting
from megalith.wire import addresses

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_JOB_RULE = "a name of letters, digits, '.', '_' and '-'"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryUrl:
    """What a back end is told. It takes the parts that it knows and refuses the others.

    `servers` is what stands between `//` and the next slash, as it was written. `path` is what
    comes then, with its slash; without `//` it is everything after the scheme.
    """

    text: str
    example: str  # a right URL of this scheme, for messages
    scheme: str
    servers: str
    path: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str, example: str) -> Self:
        """InvalidSetting if the options are not name=value."""
        # Not urllib's urlsplit: it takes one host, and refuses two in brackets.
        scheme, _, rest = text.partition(":")
        rest, question_mark, query = rest.partition("?")

        servers = ""
        path = rest
        if rest.startswith("//"):
            servers, slash, path = rest.removeprefix("//").partition("/")
            path = slash + path

        url = cls(
            text=text,
            example=example,
            scheme=scheme,
            servers=servers,
            path=unquote(path),
            options=dict(parse_qsl(query, keep_blank_values=True)),
        )

        if question_mark and not url.options:
            raise url.wrong("after the ? there is no option=value")

        return url

    def wrong(self, why: str) -> InvalidSetting:
        """The error that says what is wrong with this URL, and shows a right one."""
        return InvalidSetting(
            f"--discovery={self.text}: {why}; a right one is, for example, {self.example}"
        )

    def refuse_servers(self) -> None:
        """For back ends without servers: InvalidSetting if some are named."""
        if self.servers:
            raise self.wrong(f"no server is asked, but {self.servers} stands where one is named")

    def refuse_path(self) -> None:
        """For back ends that take nothing after the scheme."""
        if self.path.strip("/"):
            raise self.wrong(f"{self.path!r} has no meaning here")

    def take_options(self, *known: str) -> None:
        """InvalidSetting if there is an option that is not among the `known` ones."""
        listed = ", ".join(known)
        takes = f"known are {listed}" if known else "it takes none"

        for name in self.options:
            if name not in known:
                raise self.wrong(f"{name} is not an option of {self.scheme}, {takes}")

    def seconds(self, option: str, default: float) -> float:
        """That option as a time; InvalidSetting unless it is above 0."""
        text = self.options.get(option)
        if text is None:
            return default

        try:
            seconds = float(text)
        except ValueError:
            raise self.wrong(f"{option}={text} is not a number") from None

        if not 0 < seconds < float("inf"):
            raise self.wrong(f"{option}={text} is not above 0")

        return seconds

    def check_server(self, server: str, default_port: int | None = None) -> None:
        """InvalidSetting if it is not host:port; the port may be left out if there is a default."""
        has_port = ":" in server and not server.endswith("]")
        address = server
        if default_port is not None and not has_port:
            address = f"{server}:{default_port}"

        try:
            addresses.split(address)
        except InvalidRequest:
            wanted = "host:port" if default_port is None else "host or host:port"
            raise self.wrong(
                f"{server!r} is not {wanted} (an IPv6 address stands in brackets)"
            ) from None

    def job(self, site: Site) -> str:
        """The job's name: the path of this URL, or else what --job gives.

        InvalidSetting if neither names one, if both name different ones, or if it is not a name.
        """
        named = self.path.strip("/")
        if not named:
            in_url = f", or in the URL: {self.example}"
            return check_job(site.job, f"--discovery={self.text}", in_url)

        if not _JOB.fullmatch(named):
            raise self.wrong(f"the job {named!r} is not {_JOB_RULE}")
        if site.given_job not in ("", named):
            raise self.wrong(f"its job is {named}, but --job={site.given_job} is given as well")

        return named


def check_job(job: str, needed_by: str, or_where: str = "") -> str:
    """The value of --job; InvalidSetting if it is not a name."""
    if not _JOB.fullmatch(job):
        raise InvalidSetting(
            f"--job={job!r}: {needed_by} needs {_JOB_RULE}; say it as --job{or_where}"
        )

    return job

"""The parameter servers that were chosen for a job, by shard: one small file."""

import logging
import re
from pathlib import Path

from megalith.errors import InvalidRequest
from megalith.runtime.files import write_atomically
from megalith.wire import addresses

logger = logging.getLogger(__name__)


class PsListFile:
    """`<model_dir>/ps_cluster_dir/<name or "ps_info">`: addresses with commas between them.

    It is whole or absent. A name that cannot be a file's name counts as none.
    """

    def __init__(self, model_dir: Path, name: str = "") -> None:
        is_file_name = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)
        self.path = model_dir / "ps_cluster_dir" / (name if is_file_name else "ps_info")

    def read(self) -> tuple[str, ...]:
        """The addresses last written.

        None if there is no file, or it holds something else, which is logged.
        """
        try:
            listed = tuple(filter(None, self.path.read_text().strip().split(",")))
            for address in listed:
                addresses.split(address)
        except FileNotFoundError:
            return ()
        except (InvalidRequest, UnicodeDecodeError, OSError) as error:
            logger.warning("ignored the list of parameter servers path=%s: %s", self.path, error)
            return ()

        return listed

    def write(self, listed: tuple[str, ...]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, ",".join(listed).encode())

"""Where the controller of a model directory listens: one small file, written atomically by the controller."""

from pathlib import Path

FILE_NAME = "controller_server_addr.txt"


def read(model_dir: str | Path) -> str | None:
    """host:port as the last controller wrote it, or None. That controller may be gone."""
    try:
        return (Path(model_dir) / FILE_NAME).read_text().strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None

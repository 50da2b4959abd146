"""Where the AppMaster mock of a model directory listens: one small file, written atomically by the mock."""

from pathlib import Path

FILE_NAME = "appmaster_server_addr.txt"


def read(model_dir: str | Path) -> str | None:
    """host:port as the last AppMaster wrote it, or None. That AppMaster may be gone."""
    try:
        return (Path(model_dir) / FILE_NAME).read_text().strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None

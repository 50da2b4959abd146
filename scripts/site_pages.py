"""A hook of mkdocs: pages of the site that lie outside docs/, and links that lead out of docs/.

README.md, ARCHITECTURE.md and CHANGELOG.md are pages of the site too. Links in all pages are
written for the repository, so that they work on GitHub; here they are turned to the site's pages.
A link to a file that is no page, for example to a module, becomes plain text.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGE_BY_FILE = {
    "README.md": "readme.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
}
FILE_BY_PAGE = {page: file for file, page in PAGE_BY_FILE.items()}

# A fenced block, whose text is left alone, or a link: [text](target)
FENCE_OR_LINK = re.compile(
    r"^(?P<fence> *```).*?^(?P=fence) *$|\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)",
    re.DOTALL | re.MULTILINE,
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every page of a folder into the navigation where it says `folder/*`."""
    config.nav = _unfolded(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie beside docs/."""
    for name, page in PAGE_BY_FILE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))

    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page, which are those of the repository, into those of the site."""
    uri = page.file.src_uri
    source = PurePosixPath(FILE_BY_PAGE.get(uri, f"docs/{uri}"))

    def replaced(match: re.Match[str]) -> str:
        if match["fence"]:
            return match[0]

        return _link(match["text"], match["target"], source, uri)

    return FENCE_OR_LINK.sub(replaced, markdown)


def _link(text: str, target: str, source: PurePosixPath, uri: str) -> str:
    """The link as the site needs it; `source` is the page's file and `uri` its name in the site."""
    path, hash_sign, anchor = target.partition("#")
    is_elsewhere = re.match(r"[a-z]+:", target) is not None
    if is_elsewhere or not path:
        return f"[{text}]({target})"

    wanted = os.path.normpath(source.parent / path)
    page = PAGE_BY_FILE.get(wanted)
    if page is None and wanted.startswith("docs/"):
        page = wanted.removeprefix("docs/")

    if page is not None:
        relative = os.path.relpath(page, PurePosixPath(uri).parent)
        return f"[{text}]({relative}{hash_sign}{anchor})"

    if (ROOT / wanted).exists():
        return text

    return f"[{text}]({target})"  # a broken link: mkdocs names it


def _unfolded(entries: list[Any]) -> list[Any]:
    """The entries of a navigation; each `folder/*` is replaced by the pages of that folder."""
    unfolded: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            [(title, below)] = entry.items()
            unfolded.append({title: _unfolded(below) if isinstance(below, list) else below})
        elif entry.endswith("/*"):
            folder = ROOT / "docs" / entry.removesuffix("/*")
            pages = sorted(folder.glob("*.md"))
            names = [f"{folder.name}/{page.name}" for page in pages if page.stem != "index"]
            unfolded += names
        else:
            unfolded.append(entry)

    return unfolded

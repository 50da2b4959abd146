"""Pages of the documentation as they stand in the repository: headings, links, blocks of code."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<language>[\w-]*)[^\n]*$")
_INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
_COMMENT = re.compile(r"^<!--\s*(?P<text>.*?)\s*-->$", re.DOTALL)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+(?:\([^()\s]*\))?)\)")
_DEFINITION = re.compile(r"^\[[^\]]+\]:\s+(?P<target>\S+)", re.MULTILINE)
_ANCHOR = re.compile(r"<a (?:id|name)=\"(?P<name>[^\"]+)\"")
_API = re.compile(r"^::: (?P<name>\S+)", re.MULTILINE)


def pages():
    """Every page, by its path from the root of the repository."""
    return [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")),
    ]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the comment that stands right above it."""

    language: str
    text: str
    line: int  # of its first line of text, from 1
    comment: str = ""

    @property
    def marks(self):
        """What the comment says of running it."""
        return _marks(self.comment)

    def follows(self, other):
        """Does this block stand right below the other one, as its output does?"""
        return self.line == other.line + other.text.count("\n") + 2


@dataclass(frozen=True)
class Marks:
    """How a block is run. A page says it in a comment above the block, clauses with a semicolon:

    not run: REASON               never, because of REASON
    needs zookeeper               only where there is one; likewise consul, docker, grpcurl
    runs until Ctrl-C             beside the blocks after it, up to the next such block
    Ctrl-C at step 2000           the same, and ended at that step of the job
    """

    reason_not_to_run: str = ""
    needs: tuple[str, ...] = ()
    runs_on: bool = False
    until_step: int = 0

    @property
    def is_run(self):
        return not self.reason_not_to_run


def _marks(comment):
    if comment.startswith("not run:"):
        return Marks(reason_not_to_run=comment.removeprefix("not run:").strip())
    needs = []
    runs_on = False
    until_step = 0
    for clause in filter(None, (part.strip() for part in comment.split(";"))):
        at_step = re.fullmatch(r"Ctrl-C at step (\d+)", clause)
        if clause.startswith("needs "):
            needs.append(clause.removeprefix("needs ").strip())
        elif clause == "runs until Ctrl-C":
            runs_on = True
        elif at_step:
            runs_on, until_step = True, int(at_step[1])
    return Marks(needs=tuple(needs), runs_on=runs_on, until_step=until_step)


def blocks(text):
    """The fenced blocks of a page, in order."""
    found = []
    open_fence, body, begins = None, [], 0
    comment = ""
    for number, line in enumerate(_comments_on_one_line(text), start=1):
        if open_fence is None:
            match = _FENCE.match(line)
            if match:
                open_fence, body, begins = match, [], number + 1
            elif line.strip():
                remark = _COMMENT.match(line.strip())
                comment = remark["text"] if remark else ""
        elif line.strip() == open_fence["fence"]:
            indent = len(open_fence["indent"])
            code = "".join(f"{each[indent:]}\n" for each in body)
            found.append(Block(open_fence["language"], code, begins, comment))
            open_fence, comment = None, ""
        else:
            body.append(line)
    assert open_fence is None, f"the block that begins in line {begins} does not end"
    return found


def prose(text):
    """The page without its blocks and without `code`."""
    lines, is_code = [], False
    for line in text.splitlines():
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            lines.append(_INLINE_CODE.sub("", line))
    return "\n".join(lines)


def links(text):
    """The targets of all links and images of a page."""
    plain = prose(text)
    # Two passes: an image may be the text of a link.
    return [
        match["target"] for pattern in (_LINK, _DEFINITION) for match in pattern.finditer(plain)
    ]


def anchors(text):
    """What may stand behind # in a link to this page: as GitHub makes it of headings, and more."""
    found, count_by_slug, is_code = set(), Counter(), False
    for line in text.splitlines():
        if _FENCE.match(line):
            is_code = not is_code
        heading = None if is_code else re.match(r"#{1,6} +(.+?)(?: +#+)?$", line)
        if heading:
            slug = _slug(heading[1])
            repeated = count_by_slug[slug]
            count_by_slug[slug] += 1
            found.add(f"{slug}-{repeated}" if repeated else slug)
    found |= {match["name"] for match in _ANCHOR.finditer(text)}
    found |= {match["name"] for match in _API.finditer(text)}  # only in the site
    return found


def _slug(heading):
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)  # of a link, its text
    shown = re.sub(r"[*`]", "", shown)
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")


def _comments_on_one_line(text):
    """The lines of a page; a comment over several lines becomes its last one."""

    def joined(match):
        inside = " ".join(match[0].split())
        return "\n" * match[0].count("\n") + inside

    return re.sub(r"^<!--.*?-->", joined, text, flags=re.DOTALL | re.MULTILINE).splitlines()

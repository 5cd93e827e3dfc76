"""The pages of the guide and of README, and the shell blocks in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *(ROOT / folder / "README.md" for folder in ("app", "data", "train")),
    *sorted(file for file in (ROOT / "docs").rglob("*.md") if "generated" not in file.parts),
]
GENERATED = sorted((ROOT / "docs/reference/generated").glob("*.md"))
"""Pages that docs/render.py makes from the code; their sentences are checked there."""

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A shell block of a page."""

    page: Path
    text: str
    runs: bool
    """Short enough to be run by a test: `<!-- run -->` stands before it."""
    walks: bool = False
    """A step of the page's example, which a test runs as a whole: `<!-- walk -->`."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.splitlines()[0]}"

    def commands(self) -> Iterator[list[str]]:
        """Return the words of each `skindx` command, however it is started."""
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "skindx" not in words:
                continue
            at = words.index("skindx")
            starters = {"sudo", "-m", "python", "torchrun"}
            if at == 0 or starters & set(words[:at]):
                yield words[at + 1 :]


def shell_blocks() -> list[Block]:
    """Return every shell block of every page."""
    return [
        Block(
            page,
            _dedented(found.group(3), found.group(1)),
            *(_marked(text[: found.start()], mark) for mark in ("run", "walk")),
        )
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for found in _BLOCK.finditer(text)
        if found.group(2) in ("sh", "bash", "shell")
    ]


def prose_of(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def inline_commands(page: Path) -> list[list[str]]:
    """Return the words of each `skindx …` that stands as code inside a sentence."""
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", prose_of(page))
    lines = [" ".join(span.split()) for span in spans]
    return [line.split()[1:] for line in lines if line.startswith("skindx ")]


def _dedented(text: str, indent: str) -> str:
    return "\n".join(line.removeprefix(indent) for line in text.splitlines()) + "\n"


def _marked(before: str, mark: str) -> bool:
    return before.rstrip().endswith(f"<!-- {mark} -->")

"""The page of kinds: one table a family, from each kind's docstring."""

import re
from collections.abc import Iterator
from pathlib import Path

import skindx
from generators.markdown import code, escape, table
from skindx.core.kinds import FOLDERS, Family, load_object

_FAMILY = re.compile(r"^(\w+)(?:: [^=\n]+)? = Family\(", re.MULTILINE)
_PAPER = re.compile(r"[A-Z][\w.' ]+ (?:et al\. |and \w+ )?\d{4}, arXiv\s+\d{4}\.\d{4,5}")
_LEAD = """# Kinds

Each table is one choice of the settings. Other distributions add kinds by an entry point of the
group that stands above the table.
"""


def families() -> Iterator[Family]:
    """Yield every family of the package, by its module's name."""
    root = Path(skindx.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for name in _FAMILY.findall(path.read_text(encoding="utf-8")):
            module = ".".join(path.relative_to(root.parent).with_suffix("").parts)
            yield load_object(f"{module}:{name}")


def kinds() -> str:
    """Return the page."""
    parts = [_LEAD]
    for family in sorted(families(), key=lambda family: family.noun):
        parts += [
            f"## {family.noun[0].upper()}{family.noun[1:]}\n",
            f"Entry points: {code(family.group)}.\n",
        ]
        rows = [
            (
                f"{code(kind)}{_brought_by(family, kind)}",
                escape(summary),
                escape(paper_of(family.load(kind).__doc__ or "")),
            )
            for kind, summary in family.summaries().items()
        ]
        parts.append(table(("kind", "what it does", "paper"), rows))
    return "\n".join(parts)


def _brought_by(family: Family, kind: str) -> str:
    point = family.added.get(kind)
    name = point.dist.name if point and point.dist else ""
    return f" ({name})" if name in FOLDERS else ""


def paper_of(docstring: str) -> str:
    """Return the papers that a docstring names, as in "Shi et al. 2018, arXiv 1811.11141"."""
    papers = _PAPER.findall(" ".join(docstring.split()))
    return "; ".join(dict.fromkeys(re.split(r"(?<!et al)\. ", paper)[-1] for paper in papers))

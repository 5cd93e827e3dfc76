"""Print how long the guide is and how it reads: `python docs/reading.py`.

Words of fenced blocks, of rendered blocks and of generated pages are not counted: nobody wrote them
by hand. The second half is a report for writers and fails nothing.
"""

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("start", "clinicians", "howto", "clusters", "reference", "measured", "project")
MOST_WORDS = 24_500
MOST_HOW_TO_PAGES = 14
LONG_SENTENCE = 30  # words

RENDERED = re.compile(r"<!-- (?!end of|run|walk)([^>]+?) -->.*?<!-- end of \1 -->", re.DOTALL)
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_PASSIVE = re.compile(r"\b(is|are|was|were|be|been)( \w+ly)? \w+(ed|wn|en)\b", re.IGNORECASE)
_INVERTED = re.compile(r"(?:^|[.:;] )(Of|By|In|On|To|With|From) [^,.]{3,60}, \w+", re.MULTILINE)
_RIVALS = {
    "picture": "image, photo",
    "pictures": "images, photos",
    "model file": "bundle",
    "checkpoint file": "checkpoint",
    "dupe": "copy",
    "duplicate": "copy",
    "duplicates": "copies",
    "worker node": "node",
    "label noise": "wrong labels",
    "novelty": "out-of-distribution",
    "anomaly": "out-of-distribution",
    "confidence set": "conformal set",
    "patient record": "case",
    "subset": "split, group",
}
"""A word that competes with one of the glossary -> the glossary's word."""


def pages() -> list[Path]:
    """Return the pages that people write: generated ones are made when the guide is built."""
    return sorted(page for page in (ROOT / "docs").rglob("*.md") if "generated" not in page.parts)


def prose(page: Path) -> str:
    """Return a page's text without rendered and fenced blocks; links keep their text alone."""
    text = _FENCED.sub("", RENDERED.sub("", page.read_text(encoding="utf-8")))
    return re.sub(r"\]\([^)\s]*\)", "]", text)


def count(text: str) -> int:
    """Return the number of words: what stands between spaces and has a letter or a digit."""
    return sum(any(sign.isalnum() for sign in word) for word in text.split())


def part_of(page: Path) -> str:
    """Return the folder of docs in which a page lies; "" for the first page."""
    return page.relative_to(ROOT / "docs").parts[0] if page.parent != ROOT / "docs" else ""


def sentences(text: str) -> list[str]:
    """Return the sentences outside tables, lists of settings and headings."""
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||#|```|<!--|---)", line)]
    flat = re.sub(r"`[^`]*`", "x", "\n".join(lines))
    parts = re.split(r"(?<=[.!?:])\s+(?=[A-Z*\[])|\n\s*\n|\n\s*[-\d]+[.]? ", flat)
    return [" ".join(part.split()) for part in parts if count(part) > 2]


def main() -> int:
    """Print both reports."""
    words = {page: count(prose(page)) for page in pages()}
    for part in ("", *PARTS):
        mine = [page for page in words if part_of(page) == part]
        total = sum(words[page] for page in mine)
        print(f"{part or 'first page':12} {len(mine):3} pages {total:7,} words")
    print(f"{'all':12} {len(words):3} pages {sum(words.values()):7,} words, of {MOST_WORDS:,}\n")
    print("page, words a sentence, sentences over 30 words, passive and inverted of a hundred")
    for page in words:
        if found := sentences(prose(page)):
            lengths = [count(one) for one in found]
            long = sum(length > LONG_SENTENCE for length in lengths)
            passive, inverted = (
                100 * sum(bool(rule.search(one)) for one in found) / len(found)
                for rule in (_PASSIVE, _INVERTED)
            )
            print(
                f"{page.relative_to(ROOT / 'docs')!s:28} {sum(lengths) / len(found):5.1f} "
                f"{long:3} {passive:4.0f} {inverted:4.0f}"
            )
    text = re.sub(r"`[^`]*`", "", "\n".join(prose(page) for page in words)).lower()
    used = Counter(re.findall(r"[a-z][a-z-]+", text))
    print("\nwords that compete with one of the glossary:")
    for rival, better in _RIVALS.items():
        times = len(re.findall(rf"\b{rival}\b", text))
        if times:
            print(f"  {rival} ({times}): {better}")
    rare = [word for word, times in used.items() if times == 1 and len(word) > 12]
    print(f"\nlong words that occur once ({len(rare)}): {', '.join(sorted(rare))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write the measured figures into README and guide: `python docs/render.py`.

A block between `<!-- NAME -->` and `<!-- end of NAME -->` is made from a JSON under docs/measured,
which a command wrote. `python docs/render.py --check` changes nothing, and fails on a stale block.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skindx.bench.intervals.intervals import cells_of, table
from skindx.evaluation.formatting import bounds, decimal, percent, points
from skindx.metrics import Interval

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "docs/measured"


def main(arguments: list[str]) -> int:
    """Render every block; return 1 where one is stale and `--check` is given."""
    stale = [name for name in sorted({file for file, _, _ in BLOCKS.values()}) if not _fresh(name)]
    if "--check" in arguments:
        for name in stale:
            print(f"{name} is stale; run python docs/render.py")
        return int(bool(stale))
    for name in stale:
        (ROOT / name).write_text(rendered(name), encoding="utf-8")
    return 0


def rendered(file: str) -> str:
    """Return a file's text with its blocks made anew."""
    text = (ROOT / file).read_text(encoding="utf-8")
    for name, (where, source, make) in BLOCKS.items():
        if where != file:
            continue
        written = json.loads((MEASURED / source).read_text(encoding="utf-8"))
        block = f"<!-- {name} -->\n{make(written).strip()}\n<!-- end of {name} -->"
        pattern = re.compile(f"<!-- {name} -->.*?<!-- end of {name} -->", re.DOTALL)
        text, found = pattern.subn(lambda _, block=block: block, text)
        if found != 1:
            raise SystemExit(f"{file} must have one block {name}, it has {found}")
    return text


def _fresh(file: str) -> bool:
    return rendered(file) == (ROOT / file).read_text(encoding="utf-8")


def _isic9_table(written: Mapping[str, Any]) -> str:
    columns = {"top1": "top-1", "top_k": "top-5", "balanced_accuracy": "balanced accuracy"}
    headings = [*columns.values(), "calibration error"]
    lines = [
        f"| test split: {written['pictures']} pictures, {written['groups']} groups | "
        + " | ".join(headings)
        + " |",
        "|---" * (len(headings) + 1) + "|",
    ]
    for scores in (*written["members"], written["ensemble"]):
        shares = [Interval(**scores[key]) for key in columns]
        error = Interval(**scores["calibration_error"])
        cells = [f"{percent(share)} {bounds(share)}" for share in shares]
        cells.append(f"{decimal(error)} {bounds(error, 'decimal')}")
        lines.append(f"| {scores['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _isic9_text(written: Mapping[str, Any]) -> str:
    best = Interval(**written["difference"]["top1"])
    urgent, sets, risk = written["urgent"], written["sets"], written["urgent_risk"]
    lines = [
        f"Ensemble minus {written['difference']['member']}: {points(best.value)} points of top-1, "
        f"paired interval {bounds(best, 'points')}. Of the {urgent['n']} pictures of urgent "
        "classes "
        f"(melanoma, squamous cell carcinoma) {urgent['missed']} get a likeliest class that is not "
        f"urgent: {_rate(urgent['rate'])}. Sets for {100 * sets['level']:.0f} % hold the true "
        f"class for {_rate(sets['coverage'])} and have {sets['size']['value']:.2f} classes.",
        "",
        "| miss rate asked | urgent pictures missed | other pictures called urgent | confidence |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {100 * level['miss_rate']:.0f} % | {_rate(level['misses']['rate'])} | "
        f"{_rate(level['false_alarms']['rate'])} | {percent(level['confidence'])} |"
        for level in risk["levels"]
    ]
    origin = written["origin"]
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    return "\n".join([*lines, "", f"{origin['hardware']}, {origin['date'][:10]}; {versions}."])


def _rate(raw: Mapping[str, float]) -> str:
    figure = Interval(**raw)
    return f"{percent(figure)} {bounds(figure)}"


def _coverage(written: Mapping[str, Any]) -> str:
    machine = written["hardware"]
    return (
        table(cells_of(written))
        + f"\n{machine['cpu']}, {machine['cores']} cores, {written['date'][:10]}; "
        + f"numpy {written['versions']['numpy']}."
    )


BLOCKS: dict[str, tuple[str, str, Callable[[Mapping[str, Any]], str]]] = {
    "isic9 table": ("README.md", "isic9-evaluation.json", _isic9_table),
    "isic9 figures": ("README.md", "isic9-evaluation.json", _isic9_text),
    "coverage": ("docs/statistics.md", "intervals.json", _coverage),
}
"""Block -> the file it stands in, the JSON it is made from, and how."""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

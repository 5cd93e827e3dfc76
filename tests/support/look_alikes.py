"""Look-alikes of public datasets, and what a reader has to find in them.

Their generator lies beside the checkout, in shared/tools/layouts, with pictures in shared/data.
"""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skindx.data.ledger import LedgerRow

CHECKOUT = Path(__file__).resolve().parents[2]
GENERATOR = next(
    (
        folder / "shared/tools/layouts"
        for folder in CHECKOUT.parents
        if (folder / "shared/tools/layouts/make.py").is_file()
    ),
    None,
)
_SCRIPT = """
import json, sys
from pathlib import Path
generator, out, n = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, str(generator))
import make
from cases import Out, read_cases
pictures = generator.parent.parent / "data" / "ham10000"
said = {}
for name, entry in make.SETS.items():
    made = Out(out / name)
    entry.build(made, read_cases(pictures, n, entry.only))
    said[name] = make.expected(name, entry, made, files=True)
(out / "expected.json").write_text(json.dumps(said))
"""


def write_look_alikes(out: Path, n: int) -> dict[str, dict[str, Any]]:
    """Write all look-alikes, each of about n pictures; return what is right, by name."""
    subprocess.run(  # noqa: S603 the generator beside the checkout
        [sys.executable, "-c", _SCRIPT, str(GENERATOR), str(out), str(n)],
        check=True,
        capture_output=True,
    )
    said: dict[str, dict[str, Any]] = json.loads((out / "expected.json").read_text())
    return said


def differences(rows: Sequence[LedgerRow], expected: Mapping[str, Any]) -> list[str]:
    """Return in what gathered rows differ from what is right: images, classes, groups, facts."""
    truths = expected["files"]
    stored = [row for row in rows if row.status == "stored"]
    pairs = _paired(stored, truths)
    found = []
    if len(pairs) != len(truths) or len(stored) != len(truths):
        found.append(f"{len(stored)} images, {len(pairs)} of {len(truths)} that are right")
    labels = {(row.label, truth["label"]) for row, truth in pairs}
    if len({mine for mine, _ in labels}) < len(labels) or len({one for _, one in labels}) < len(
        labels
    ):
        found.append(f"classes {sorted(labels)}")
    mine = _partition([row.group.split("\n") for row, _ in pairs])
    right = _partition([[truth["group"]] for _, truth in pairs])
    if mine != right:
        found.append(f"{len(mine)} groups and not {len(right)}")
    for name, count in facts(pairs).items():
        if count[0] != count[1]:
            found.append(f"{name} of {count[0]} images and not of {count[1]}")
    return found


def facts(pairs: Sequence[tuple[LedgerRow, Mapping[str, Any]]]) -> dict[str, tuple[int, int]]:
    """Return how many images have each fact, in the rows and rightly."""
    fields = {"age": "age", "sex": "sex", "site": "site", "skin_type": "skin_type"}
    fields |= {"confirmed_by": "confirmation", "split": "split"}
    counts = {}
    for mine, right in fields.items():
        there = sum(getattr(row, mine, None) not in (None, "", 0) for row, _ in pairs)
        due = sum(_is_fact(right, truth.get(right)) for _, truth in pairs)
        counts[right] = (there, due)
    return counts


def _is_fact(name: str, value: Any) -> bool:
    # A band of two skin types is no type.
    return value not in (None, "") and not (name == "skin_type" and "band" in str(value))


def _paired(
    rows: Sequence[LedgerRow], truths: Iterable[Mapping[str, Any]]
) -> list[tuple[LedgerRow, Mapping[str, Any]]]:
    """Return rows with what is right of the same file, by the ends of their paths."""
    by_name: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        by_name[row.url.rpartition("/")[2]].append(row)
    pairs = []
    for truth in truths:
        file = truth["file"]
        near = [
            row
            for row in by_name[file.rpartition("/")[2]]
            if file.endswith(row.url) or row.url.endswith(file)
        ]
        pairs += [(near[0], truth)] if len(near) == 1 else []
    return pairs


def _partition(keys: Sequence[Sequence[str]]) -> set[frozenset[int]]:
    """Return the images of each group, by number; an image without a key is in none."""
    sets: list[tuple[set[str], set[int]]] = []
    for number, names in enumerate(keys):
        names_, numbers = set(names) - {""}, {number}
        if not names_:
            continue
        apart = []
        for other, others in sets:
            if names_ & other:
                names_, numbers = names_ | other, numbers | others
            else:
                apart.append((other, others))
        sets = [*apart, (names_, numbers)]
    return {frozenset(numbers) for _, numbers in sets}

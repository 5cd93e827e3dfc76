"""Look-alikes of public datasets, and what a reader has to find in them.

Their generator lies beside the checkout, in shared/tools/layouts, with pictures in shared/data.
"""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skindx.data.ledger import LedgerRow
from skindx.data.recipe import BuildSettings
from skindx.data.splits.groups import GroupKeys

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
import io
from functools import cache
from PIL import Image
import cases, sets, make
from cases import Out, read_cases

@cache
def read_jpeg(data):  # the generator's own decoder is of Python alone
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return *image.size, image.tobytes()

def shrink(width, height, rgb, wide, high):
    return Image.frombytes("RGB", (width, height), rgb).resize((wide, high)).tobytes()

cases.read_jpeg = sets.read_jpeg = read_jpeg
sets.shrink = shrink
cases.write_png = cache(cases.write_png)
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
    subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(GENERATOR), str(out), str(n)],
        check=True,
        capture_output=True,
    )
    said: dict[str, dict[str, Any]] = json.loads((out / "expected.json").read_text())
    return said


def gathered(settings: BuildSettings, dataset: Path) -> list[LedgerRow]:
    """Return the rows of a recipe's sources, with the groups of its tables."""
    rows = [row for source in settings.sources for row in source.gather(dataset)]
    if not settings.groups.tables:
        return rows
    keys = GroupKeys(settings.groups)
    return [replace(row, group="\n".join(keys.group_keys(row))) for row in rows]


def differences(rows: Sequence[LedgerRow], expected: Mapping[str, Any]) -> list[str]:
    """Return in what gathered rows differ from what is right: images, classes, groups, facts."""
    truths = expected["files"]
    stored = [row for row in rows if row.status == "stored"]
    pairs = paired(stored, truths)
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


def paired(
    rows: Sequence[LedgerRow], truths: Iterable[Mapping[str, Any]]
) -> list[tuple[LedgerRow, Mapping[str, Any]]]:
    """Return rows with what is right of the same file, by the ends of their paths."""
    by_name: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        by_name[row.url.rpartition("/")[2]].append(row)
        by_name[row.url.rpartition("/")[2].rpartition(".")[0]].append(row)
    pairs = []
    for truth in truths:
        # An image of an array is name[7], and one of a shard has its split before its name.
        file = truth["file"].replace("[", "/").rstrip("]")
        file = file if "/" in file else file.rpartition(" ")[2]
        near = by_name[file.rpartition("/")[2]]
        ends = [row for row in near if file.endswith(row.url) or row.url.endswith(file)]
        near = ends or [row for row in near if "/" not in file]
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

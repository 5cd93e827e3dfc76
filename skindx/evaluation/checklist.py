"""Reporting checklists, filled in from what was measured.

checklists.yaml holds the items of STARD-AI, TRIPOD+AI and CLEAR Derm in our words. The evidence of
an item is sentences with places, such as {metrics:ensemble.auroc}: a sentence is given only where
all its places hold a value, so nothing is answered without evidence. The rest is for a person.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from skindx.core.atomic_files import write_json, write_text
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.untrusted import MALFORMED
from skindx.data.layout import MANIFEST
from skindx.data.manifest import SPLITS, UNKNOWN, Record, count_images, read_manifest, split_of
from skindx.evaluation.evaluation_report import render
from skindx.evaluation.image_table import read_image_table
from skindx.models.bundle.bundle_index import MANIFEST_SHA256

CHECKLIST = "checklist"
"""The name of the three files: .html and .md for people, .json for programs."""

_FILES = {
    "metrics": "metrics.json",
    "bundle": "bundle.json",
    "dataset": "summary.json",
    "manifest": "manifest.parquet",
    "scored": "manifest.parquet, scored images",
    "training": "manifest.parquet, training images",
}
"""Source of evidence -> where it stands."""
_PLACE = re.compile(r"\{(\w+):([^{}]+)\}")
_NAMED = re.compile(r"\[(\w+)=([^\]]+)\]")

Status = Literal["answered", "in part", "by a person"]


class ChecklistItem(Settings):
    """One item: what it asks, the sentences of evidence, and what a person has to write."""

    n: str
    topic: str
    evidence: tuple[str, ...] = ()
    person: str = ""
    """"": the evidence answers it."""


class Checklist(Settings):
    """One guideline; `paper` is where its items are defined."""

    key: str
    title: str
    paper: str
    items: tuple[ChecklistItem, ...]


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """An item with the evidence that exists."""

    n: str
    topic: str
    status: Status
    answer: tuple[str, ...]
    places: tuple[str, ...]
    """File and key of each value in the answer."""
    missing: tuple[str, ...]
    """Places that would say more, and hold nothing."""
    person: str


def read_checklists() -> list[Checklist]:
    text = (Path(__file__).parent / "checklists.yaml").read_text(encoding="utf-8")
    return [Checklist.model_validate(entry) for entry in yaml.safe_load(text)]


def gather_evidence(evaluation: Path) -> dict[str, Any]:
    """Return the sources of evidence by name; the bundle and the dataset where they still are.

    Raises UserError for a folder that is no evaluation.
    """
    try:
        metrics = json.loads((evaluation / "metrics.json").read_text(encoding="utf-8"))
        origin = metrics["origin"]
        bundle, dataset = Path(origin["bundle"]), Path(origin["dataset"])
    except (OSError, *MALFORMED) as error:
        raise UserError(
            f"{evaluation} is not an evaluation ({error}); give a folder that `skindx evaluate` "
            "wrote."
        ) from None
    evidence: dict[str, Any] = {source: {} for source in _FILES}
    evidence |= {"metrics": metrics, "bundle": _json(bundle / "bundle.json")}
    evidence["dataset"] = _json(dataset / "summary.json")
    if (dataset / MANIFEST).is_file():
        records = read_manifest(dataset)
        evidence["manifest"] = _partition(records)
        scored = {record.sha256 for record in read_image_table(evaluation)[0]}
        evidence["scored"] = count_images([r for r in records if r.sha256 in scored])
        trained_on = evidence["bundle"].get("provenance", {}).get(MANIFEST_SHA256)
        if trained_on == origin["manifest_sha256"]:
            counts = {split: count_images(split_of(records, split)) for split in SPLITS}
            evidence["training"] = counts["train"] | counts
    return evidence


def _partition(records: Sequence[Record]) -> dict[str, Any]:
    splits = {(record.group, record.split) for record in records}
    groups = Counter(group for group, _ in splits)
    return {
        "splits": dict(Counter(record.split for record in records)),
        "groups": len(groups),
        "groups_in_two_splits": sum(n > 1 for n in groups.values()),
    }


def _json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, *MALFORMED):
        return {}
    return read if isinstance(read, dict) else {}


def answer_item(item: ChecklistItem, evidence: Mapping[str, Any]) -> ItemAnswer:
    """Fill in the sentences whose places all hold a value."""
    answer, places, missing = [], [], []
    for sentence in item.evidence:
        facts = [(source, key, value_at(evidence[source], key)) for source, key in
                 _PLACE.findall(sentence)]  # fmt: skip
        absent = [f"{source}: {key}" for source, key, value in facts if is_empty(value)]
        missing += absent
        if absent or not facts:
            continue
        texts = [*(text_of(value) for _, _, value in facts), ""]
        words = _PLACE.split(sentence)[::3]
        answer.append("".join(word + text for word, text in zip(words, texts, strict=True)))
        places += [f"{_FILES[source]}: {key}" for source, key, _ in facts]
    person = item.person
    if missing and not answer and not person:
        person = "Write this: the evaluation has nothing on it."
    status: Status = "by a person" if not answer else "in part" if person or missing else "answered"
    return ItemAnswer(
        item.n, item.topic, status, tuple(answer), tuple(places), tuple(missing), person
    )


def value_at(value: Any, key: str) -> Any:
    """Return what stands at a key; None where nothing does.

    classes.*.n is the n of all classes, breakdowns.[attribute=site] the entry with that attribute,
    and classes.*.name+n the n of each class by its name.
    """
    for number, part in enumerate(parts := key.split(".")):
        if "+" in part:
            label, _, rest = ".".join(parts[number:]).partition("+")
            entries = value_at(value, rest)
            return None if is_empty(entries) else {f"{text_of(value_at(value, label))}:": entries}
        named = _NAMED.fullmatch(part)
        if part == "*" and isinstance(value, list):
            rest = ".".join(parts[number + 1 :])
            return [value_at(entry, rest) for entry in value]
        if named and isinstance(value, list):
            name, wanted = named.groups()
            value = next((entry for entry in value if entry.get(name) == wanted), None)
        elif isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def is_empty(value: Any) -> bool:
    """Return whether a value says nothing: absent, not defined, or of nobody known."""
    if isinstance(value, dict):
        return value.get("value", value) is None or value.keys() <= {UNKNOWN}
    if isinstance(value, list):
        return all(map(is_empty, value))
    return value is None or value == ""


def text_of(value: Any) -> str:
    """Write a value of any file: an interval, counts, a list, a number or a text."""
    if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
        low, high = text_of(value["low"]), text_of(value["high"])
        return f"{text_of(value['value'])} [{low}, {high}]"
    if isinstance(value, dict):
        return "; ".join(f"{key} {text_of(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        texts = list(map(text_of, value))
        if isinstance(value[0], dict):  # such as the input of members, which is often the same
            texts = list(dict.fromkeys(texts))
        return (" / " if isinstance(value[0], list) else ", ").join(texts)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_checklists(evaluation: Path) -> Path:
    """Write checklist.html, .md and .json into an evaluation; return the page. Raises UserError."""
    evidence = gather_evidence(evaluation)
    filled = [
        (checklist, [answer_item(item, evidence) for item in checklist.items])
        for checklist in read_checklists()
    ]
    origin = evidence["metrics"]["origin"]
    page = evaluation / f"{CHECKLIST}.html"
    write_text(page, render("checklist.html.jinja", origin=origin, filled=filled))
    write_text(page.with_suffix(".md"), "\n".join(_markdown(filled)) + "\n")
    values = {c.key: [asdict(answer) for answer in answers] for c, answers in filled}
    write_json(page.with_suffix(".json"), {"origin": origin, "checklists": values})
    return page


def _markdown(filled: Sequence[tuple[Checklist, Sequence[ItemAnswer]]]) -> Iterator[str]:
    for checklist, answers in filled:
        yield f"## {checklist.title}\n\n{checklist.paper}\n"
        yield "| item | topic | measured | where | by a person |\n|---|---|---|---|---|"
        for item in answers:
            columns = (item.n, item.topic, *map("; ".join, (item.answer, item.places)), item.person)
            cells = (" ".join(cell.split()).replace("|", "\\|") for cell in columns)
            yield f"| {' | '.join(cells)} |"
        yield ""

"""Browsing a dataset: which images fit, how many fit other choices, pages."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paint_images import encode, paint
from small_dataset import SmallDataset

from skindx.data.decisions import Flag, write_flags
from skindx.data.layout import TAXONOMY, store_bytes
from skindx.data.manifest import SPLITS, Issue, Record, write_manifest
from skindx.review.browse import OUT, PAGE, DatasetBrowser
from skindx.review.dataset_review import DatasetReview
from skindx.taxonomy import SkinClass, Taxonomy

SIGN = "\u202e<b>"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallDataset:
    """Return 150 images of three classes and two sources, and two images that were left out."""
    small = SmallDataset(tmp_path_factory.mktemp("browse") / "data")
    first = small.add()
    (one,) = small.records
    small.records = [
        replace(
            one,
            sha256=one.sha256 if number == 0 else f"{number:064x}",
            label=("Acne", "Eczema", "Éczéma_rare")[number % 3],
            split=SPLITS[number % 4],
            source=("b", "a")[number % 5 == 0],
            source_url=f"folder {number // 10}/IMG_{number:04d}.jpg",
            group=f"patient {number // 2}",
        )
        for number in range(150)
    ]
    left, _ = store_bytes(small.folder, encode(paint(999)), ".jpg")
    small.issues = [
        Issue(f"gone/{SIGN}.jpg", left, "Unheard_of", "near-duplicate", "as another", first),
        Issue("https://x.example/none.jpg", "", "Acne", "dead-link"),
    ]
    small.write()
    write_flags(small.folder, [Flag(first, "face", 0.9)], ["face"])
    classes = [SkinClass(key="Acne", name=f"Acne {SIGN}"), SkinClass(key="Eczema", name="Eczema")]
    Taxonomy(name="t", title="T", classes=tuple(classes)).save(small.folder / TAXONOMY)
    return small


@pytest.fixture(scope="module")
def browser(small: SmallDataset) -> DatasetBrowser:
    return DatasetBrowser(DatasetReview(small.folder))


def files(answer: dict[str, Any]) -> list[str]:
    return [row["file"] for row in answer["rows"]]


def places(answer: dict[str, Any], name: str) -> dict[str, int]:
    return {words: at for at, (words, _) in enumerate(answer[name])}


def test_all_images_stand_by_class_split_and_group(
    small: SmallDataset, browser: DatasetBrowser
) -> None:
    answer = browser.find()
    assert (answer["all"], answer["images"], answer["pages"]) == (151, 151, 3)
    assert answer["groups"] == 75 + 1
    rows = [row for page in range(3) for row in browser.find(page=page)["rows"]]
    assert len(rows) == len({row["at"] for row in rows}) == 151
    order = {split: at for at, split in enumerate((*SPLITS, OUT))}
    keys = [(record.label, order[record.split], record.group) for record in small.records]
    expected = [
        Path(record.source_url).name
        for _, _, record in sorted(
            zip(keys, [r.source_url for r in small.records], small.records, strict=True),
            key=lambda row: row[:2],
        )
    ]
    assert [row["file"] for row in rows if row["split"] != OUT] == expected
    assert dict(answer["label"]) == {
        "Acne \N{REPLACEMENT CHARACTER}<b>": 50, "Eczema": 50, "Unheard of": 1, "Éczéma rare": 50
    }  # fmt: skip
    splits = Counter(record.split for record in small.records)
    assert dict(answer["split"]) == {split: splits[split] for split in SPLITS} | {OUT: 1}
    assert dict(answer["source"]) == {"not named": 1, "a": 30, "b": 120}


def _fits(record: Record, label: str, split: str, source: str, text: str) -> bool:
    names = f"{record.label} {record.source_url} {record.group} {record.source}".casefold()
    return (
        label in ("", record.label)
        and split in ("", record.split)
        and source in ("", record.source)
        and all(word in names for word in text.casefold().split())
    )


@pytest.mark.parametrize("text", ["", "img_00", "patient 7", "FOLDER éczéma", "nothing"])
@pytest.mark.parametrize("source", ["", "a"])
@pytest.mark.parametrize("split", ["", "val"])
@pytest.mark.parametrize("label", ["", "Eczema"])
def test_filters_and_counts_are_those_of_a_plain_search(
    small: SmallDataset, browser: DatasetBrowser, label: str, split: str, source: str, text: str
) -> None:
    whole = browser.find()
    chosen = {
        name: places(whole, name)[value] if value else None
        for name, value in (("label", label), ("split", split), ("source", source))
    }
    answer = browser.find(**chosen, text=text)
    kept = [row for row in small.records if _fits(row, label, split, source, text)]
    extra = not any((label, split, source, text))
    assert answer["images"] == len(kept) + extra
    assert answer["groups"] == len({row.group for row in kept}) + extra
    for name, value in (("label", label), ("split", split), ("source", source)):
        others = {"label": label, "split": split, "source": source} | {name: ""}
        fit = [row for row in small.records if _fits(row, **others, text=text)]
        counts = Counter(getattr(row, name) for row in fit)
        told = {words: n for words, n in answer[name] if n}
        assert sum(told.values()) == len(fit) + (not any((*others.values(), text)))
        if value:
            assert told.get(value, 0) == counts[value]
    assert len(answer["rows"]) == min(PAGE, answer["images"])


def test_pages_end_where_the_images_do(browser: DatasetBrowser) -> None:
    last = browser.find(page=10**6)
    assert (last["page"], len(last["rows"])) == (2, 151 - 2 * PAGE)
    nothing = browser.find(text="nothing of this name", page=3)
    assert (nothing["images"], nothing["page"], nothing["pages"], nothing["rows"]) == (0, 0, 1, [])
    assert browser.find(label=9999)["images"] == 0


def test_hostile_names_and_flags_are_shown_as_text(browser: DatasetBrowser) -> None:
    out = browser.find(split=len(SPLITS))
    assert files(out) == ["\N{REPLACEMENT CHARACTER}<b>.jpg"]
    flagged = [row for row in browser.find(text="img_0000")["rows"] if row["flags"]]
    assert [row["flags"] for row in flagged] == [["face"]]
    assert browser.find(text="0" * 60)["images"] == 149, "by hash"


def test_thousands_are_found_and_one_image_is_enough(tmp_path: Path) -> None:
    small = SmallDataset(tmp_path / "data")
    small.add()
    folder = small.write()
    (one,) = small.records
    browser = DatasetBrowser(DatasetReview(folder))
    assert browser.find()["images"] == 1
    many = [
        replace(one, sha256=f"{n:064x}", label=f"class {n % 1000}", group="g")
        for n in range(20_000)
    ]
    write_manifest(folder, many)
    answer = DatasetBrowser(DatasetReview(folder)).find(text="class 77")
    fit = [name for name in range(1000) if "77" in str(name)]
    assert answer["images"] == 20 * len(fit)
    assert len([n for _, n in answer["label"] if n]) == len(fit)

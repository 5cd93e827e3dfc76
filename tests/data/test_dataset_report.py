"""The report of a dataset: what it tells, that it needs nothing else, and what it never shows."""

import json
import re
import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from paint_images import paint, save
from small_dataset import SmallDataset, free_dataset

from skindx.core.errors import UserError
from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.decisions import Flag, write_flags
from skindx.data.layout import REPORT, SUMMARY, TAXONOMY
from skindx.data.manifest import Issue, Record, read_issues, read_manifest, write_manifest
from skindx.data.removal.takedown import carry_out, plan
from skindx.data.report.dataset_facts import dataset_facts, gaps
from skindx.data.report.dataset_report import renew_report, write_report
from skindx.data.report.reason_texts import REASON_TEXTS
from skindx.taxonomy import SkinClass, Taxonomy

OLDER = Path(__file__).parents[1] / "fixtures" / "v0_2" / "dataset"
HOSTILE = "<script>alert(1)</script>\"'&\u202egpj"
NAMESPACE = "{http://www.w3.org/1999/xhtml}"


def tree_of(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page)


def words_of(page: str) -> str:
    body = tree_of(page).find("body")
    assert body is not None
    return " ".join("".join(body.itertext()).split())


def rows_of(page: str, name: str = "classes") -> dict[str, list[str]]:
    """Return the rows of a table: heading -> its other cells."""
    table = next(one for one in tree_of(page).iter("table") if name in one.get("class", ""))
    rows = {}
    for row in table.iter("tr"):
        cells = [" ".join(" ".join(cell.itertext()).split()) for cell in row]
        rows[cells[0]] = cells[1:]
    return rows


def check_alone(page: str) -> None:
    """Assert that a page runs nothing and refers to nothing outside of it."""
    for node in tree_of(page).iter():
        assert node.tag not in ("script", "link", "iframe", "object", "a", "form", "base")
        for name, value in node.attrib.items():
            assert not name.startswith("on")
            if name in ("src", "href"):
                assert value.startswith("data:image/jpeg;base64,")
    assert "url(" not in page
    assert "@import" not in page
    assert "Content-Security-Policy" in page


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder of two classes with a copy, a contradiction and what is no image."""
    root = tmp_path / "pictures"
    for shift, label in enumerate(("nevus", "melanoma")):
        for number in range(9 - shift):
            save(root / label / f"{number}.jpg", paint(100 * shift + number))
    (root / "nevus" / "again.jpg").write_bytes((root / "nevus" / "0.jpg").read_bytes())
    (root / "melanoma" / "wrong.jpg").write_bytes((root / "nevus" / "1.jpg").read_bytes())
    (root / "nevus" / "notes.txt").write_text("no picture")
    return root


def test_every_build_writes_the_same_report_of_the_same_images(root: Path, tmp_path: Path) -> None:
    settings = load_build_settings(root, ["workers=1", "sources.0.licence=CC0-1.0"], "isic9")
    pages = []
    for name in ("one", "other"):
        build(settings, tmp_path / name)
        pages.append((tmp_path / name / REPORT).read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    out = tmp_path / "one"
    assert str(tmp_path) not in pages[0]
    write_report(out)
    assert (out / REPORT).read_text(encoding="utf-8") == pages[0], "from the tables alone"
    check_alone(pages[0])

    records, issues = read_manifest(out), read_issues(out)
    words = words_of(pages[0])
    assert f"{len(records)} images of 2 classes in {len(records)} groups" in words
    assert f"of {len(records) + len(issues)} found" in words
    rows = rows_of(pages[0])
    for label, name in (("Nevus", "Nevus (mole)"), ("Melanoma", "Melanoma urgent")):
        of_one = [record for record in records if record.label == label]
        splits = Counter(record.split for record in of_one)
        cells = rows[name]
        assert cells[1].split() == [str(len(of_one))] * 2
        assert [int(cell.split()[0]) for cell in cells[2:6]] == [
            splits[split] for split in ("train", "val", "calibration", "test")
        ]
    stages = rows_of(pages[0], "stages")
    assert stages["Nevus (mole)"] == [*("11", "10", "10", "8", "8"), (
        "conflicting-duplicate 1, exact-duplicate 1, not-a-picture 1"
    )]  # fmt: skip
    assert stages["Melanoma"] == ["9", "9", "9", "8", "8", "conflicting-duplicate 1"]
    for reason, count in Counter(issue.reason for issue in issues).items():
        assert f"{reason} {count}" in words
    assert "nevus/notes.txt" in words
    assert "has the same bytes as" in words
    assert "Fewer than 10 groups in test" in words
    assert "Not known of any image: label confirmed by, skin type, age" in words
    assert pages[0].count("data:image/jpeg") == 12, "six of each class"


def test_a_failed_render_leaves_the_older_dataset_whole(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, out = load_build_settings(root, ["workers=1"], "isic9"), tmp_path / "out"
    build(settings, out)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    save(root / "nevus" / "more.jpg", paint(77))

    def fail(*_: object, **__: object) -> str:
        raise OSError("no room")

    monkeypatch.setattr("skindx.data.build.build_dataset.render_report", fail)
    with pytest.raises(OSError, match="no room"):
        build(settings, out)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_hostile_names_are_text(tmp_path: Path) -> None:
    small = SmallDataset(tmp_path / "data")
    for number in range(16):
        small.add(
            source_url=f"https://x.example/{HOSTILE}{number}",
            source=HOSTILE,
            licence=HOSTILE if number else "CC BY 4.0",
            creator=HOSTILE,
            site=HOSTILE,
            confirmed_by=HOSTILE,
        )
    small.issues = [
        Issue(f"javascript:{HOSTILE}", "", HOSTILE, "dead-link", HOSTILE),
        Issue("y" * 5000, "", "", HOSTILE),
    ]
    folder = small.write()
    classes = [SkinClass(key=key, name=f"{key} {HOSTILE}") for key in ("Acne", "Eczema")]
    Taxonomy(name="small", title=HOSTILE, classes=tuple(classes)).save(folder / TAXONOMY)
    summary = {
        "name": HOSTILE,
        "notes": [f"`{HOSTILE}` and more"],
        "dropped_classes": {"a": HOSTILE},
    }
    (folder / SUMMARY).write_text(json.dumps(summary))
    page = write_report(folder).read_text(encoding="utf-8")
    check_alone(page)
    assert "<script" not in page
    assert "\u202e" not in page, "letters are read in their order"
    words = words_of(page)
    assert words.count("<script>alert(1)</script>") > 10
    assert max(map(len, re.findall("y+", words))) < 200
    titles = [node.text for node in tree_of(page).iter("title")]
    assert titles
    assert str(titles[0]).startswith("Dataset <script>alert(1)")


def test_a_thousand_classes_fit_on_a_page(tmp_path: Path) -> None:
    small = SmallDataset(tmp_path)
    small.add()
    one = small.records[0]
    splits = ("train", "train", "val", "calibration", "test")
    records = [
        replace(
            one,
            sha256=f"{label:032x}{number:032x}",
            label=f"class_{label:04d}",
            group=f"{label}-{number}",
            split=splits[number % 5],
            source=f"source {label}",
            licence=f"licence {label}",
        )
        for label in range(1000)
        for number in range(5 + label % 7 * 15)
    ]
    issues = [Issue(f"u{n}", "", f"class_{n % 1000}", f"reason-{n % 3}") for n in range(3000)]
    write_manifest(tmp_path, records)
    small.records, small.issues = records, issues
    small.write()
    (tmp_path / TAXONOMY).unlink()
    started = time.perf_counter()
    page = write_report(tmp_path).read_text(encoding="utf-8")
    print(f"{len(records):,} images of 1,000 classes: {time.perf_counter() - started:.1f} s")
    check_alone(page)
    assert len(page) < 200_000
    rows = rows_of(page)
    assert len(rows) == 40 + 20 + 3, "heading, the classes left out, and all"
    assert "940 classes between them are left out here" in " ".join(rows)
    assert "1,000" in words_of(page)
    assert "and 421 more classes" in words_of(page), "429 classes have 1, 4 or 7 groups in test"


def test_pictures_are_licensed_and_never_of_what_is_flagged(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data", 8)
    hidden = [small.add(licence=""), small.add(licence="CC BY-ND 4.0"), small.add(creator="")]
    folder = small.write()

    def shown() -> set[str]:
        files = [node.get("title") for node in tree_of((folder / REPORT).read_text()).iter("img")]
        return {one.sha256 for one in small.records if one.source_url in files}

    write_report(folder)
    free = {record.sha256 for record in small.records} - set(hidden)
    assert shown() == free
    words = words_of((folder / REPORT).read_text())
    assert "Not shown here: 1 with a licence that permits no changed copies, 1 with no" in words
    assert "No program has looked for faces and text in 11 of the images" in words

    face = small.records[0].sha256
    write_flags(folder, [Flag(face, "face", 0.9)], ["face", "text", "intimate"])
    header = "sha256,verdict,label,by,when,note"
    (folder / "decisions.csv").write_text(f"{header}\n{face},keep,,A,2025-01-01T00:00:00+00:00,\n")
    write_report(folder)
    assert shown() == free - {face}, "kept for publishing, and still not here"
    assert "1 flagged for privacy" in words_of((folder / REPORT).read_text())


def test_an_image_that_is_taken_down_leaves_the_report(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(load_build_settings(root, ["workers=1", "sources.0.licence=CC0-1.0"], "isic9"), out)
    before = (out / REPORT).read_text()
    shown = {node.get("title") for node in tree_of(before).iter("img")}
    gone = next(record for record in read_manifest(out) if record.source_url in shown)
    carry_out(plan([out], sha256s=[gone.sha256]))
    after = (out / REPORT).read_text()
    picture = next(n for n in tree_of(before).iter("img") if n.get("title") == gone.source_url)
    assert str(picture.get("src")) not in after
    assert "taken-down 1" in words_of(after)
    assert gone.source_url not in after
    (out / REPORT).unlink()
    other = read_manifest(out)[0]
    carry_out(plan([out], sha256s=[other.sha256]))
    assert not (out / REPORT).exists(), "a dataset of an older version gets none by a take-down"


@pytest.mark.parametrize("lacking", [(), (SUMMARY,), (SUMMARY, "issues.parquet", TAXONOMY)])
def test_an_older_dataset_gets_a_report(tmp_path: Path, lacking: tuple[str, ...]) -> None:
    folder = Path(shutil.copytree(OLDER, tmp_path / "data"))
    for name in lacking:
        (folder / name).unlink()
    page = write_report(folder).read_text(encoding="utf-8")
    check_alone(page)
    words = words_of(page)
    assert f"{len(read_manifest(folder))} images of 3 classes" in words
    assert ("does not say what became of copies" in words) == bool(lacking)
    if lacking[1:]:
        assert "Nothing: every image that was found is kept." in words


def test_what_is_no_dataset_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a dataset"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    "summary",
    [{"funnel": [1]}, {"funnel": [{"label": "a"}]}, {"copies": {"torn": 1, "torn_images": 3}},
     {"found": "x"}, {"absent_classes": 5}],
)  # fmt: skip
def test_a_summary_that_no_build_wrote_is_one_sentence(tmp_path: Path, summary: object) -> None:
    folder = free_dataset(tmp_path / "data", 4).write()
    (folder / SUMMARY).write_text(json.dumps(summary))
    with pytest.raises(UserError, match=r"summary\.json is damaged"):
        write_report(folder)
    (folder / REPORT).write_text("older")
    with pytest.raises(UserError, match="is damaged"):
        renew_report(folder)
    assert not (folder / REPORT).exists(), "it may show what was flagged since"


def test_many_reasons_and_long_notes_are_cut(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data", 4)
    small.issues = [Issue(f"u{n}", "", f"c{n}", f"reason-{n}") for n in range(5000)]
    folder = small.write()
    (folder / SUMMARY).write_text(json.dumps({"notes": ["n" * 10**4] * 1000}))
    page = write_report(folder).read_text(encoding="utf-8")
    assert len(page) < 200_000
    assert "And 960 more" in words_of(page)
    assert "for 5,000 reasons" in words_of(page)
    assert "4,940 more reasons" in words_of(page)


def test_a_damaged_image_is_left_out_of_the_pictures(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data", 4)
    folder = small.write()
    (folder / small.records[0].path).write_bytes(b"no picture")
    (folder / small.records[1].path).unlink()
    page = write_report(folder).read_text(encoding="utf-8")
    assert page.count("data:image/jpeg") == 2


def _facts(places: dict[str, dict[str, int]], urgent: str = "") -> list[str]:
    """Return the sentences of a dataset with so many groups of each class in each split."""
    records = [
        Record(
            f"store/{label}{split}{n}", f"{label}{split}{n}", "", 10, 10, label,
            f"{label}{split}{n}", split,  # type: ignore[arg-type]
        )
        for label, counts in places.items()
        for split, count in counts.items()
        for n in range(count)
    ]  # fmt: skip
    classes = tuple(
        SkinClass(key=key, name=key, urgency="urgent" if key == urgent else "routine")
        for key in places
    )
    taxonomy = Taxonomy(name="t", title="T", classes=classes)
    facts = dataset_facts(records, [], taxonomy, {}, [], name="t", compared=True)
    assert tuple(gaps(facts.classes)) == facts.gaps
    return list(facts.gaps)


def test_figures_that_a_split_cannot_give_are_named() -> None:
    whole = {"train": 20, "val": 10, "calibration": 10, "test": 10}
    assert not _facts({"a": whole, "b": whole}, "a")
    assert _facts({"a": whole, "b": {"train": 8}}) == [
        "No image in val of b: what is chosen there does not heed them.",
        "No image in calibration of b: no threshold is fitted to them, and no promise of a "
        "prediction set holds for them.",
        "No image in test of b: no figure of them can be computed, and averages over classes are "
        "those of the others.",
    ]
    (few, urgent) = _facts({"a": whole, "b": whole | {"test": 1}, "c": whole | {"test": 5}}, "c")
    # Of n of n the exact interval begins at 0.025 ** (1 / n).
    assert "b (1 group, 2 %), c (5 groups, 47 %)" in few
    assert "5 groups in test together" in urgent
    (train,) = _facts({"a": whole, "b": whole | {"train": 0}})
    assert train == "No image in train of b: no network learns them."


def test_texts_are_of_reasons_that_exist() -> None:
    package = Path(__file__).parents[2] / "skindx"
    files = [path for path in package.rglob("*.py") if path.name != "reason_texts.py"]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    assert not [reason for reason in REASON_TEXTS if f'"{reason}"' not in code]

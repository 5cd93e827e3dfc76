import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paint_images import encode, paint, save
from rich.console import Console

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.build.build_dataset import BuildSettings, build, load_build_settings
from skindx.data.labels import taxonomy_of
from skindx.data.manifest import read_issues, read_manifest
from skindx.data.summary import STAGES, print_summary
from skindx.taxonomy import load_taxonomy

DATASET = {"store", "manifest.parquet", "issues.parquet", "taxonomy.yaml", "recipe.yaml"}
DATASET |= {"splits.csv", "summary.json", "report.html", "copies.parquet", "copies"}
LOST = "4 images named, 4 fetched, 0 sound, 0 distinct, 0 kept (4 damaged)"


def fill(folder: Path, count: int, seed: int) -> None:
    for n in range(count):
        save(folder / f"{n}.jpg", paint(seed + n))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder of two classes with one of each fault."""
    root = tmp_path / "pictures"
    fill(root / "Train" / "nevus", 8, 0)
    fill(root / "test" / "nevus", 4, 20)
    fill(root / "Train" / "melanoma", 6, 40)
    fill(root / "Train" / "vascular lesion", 3, 60)
    nevus, melanoma = root / "Train" / "nevus", root / "Train" / "melanoma"
    (nevus / "again.jpg").write_bytes((nevus / "0.jpg").read_bytes())
    save(nevus / "mirrored.jpg", np.ascontiguousarray(paint(1)[:, ::-1]), quality=60)
    (melanoma / "contradiction.jpg").write_bytes((nevus / "2.jpg").read_bytes())
    save(melanoma / "near contradiction.jpg", np.ascontiguousarray(np.rot90(paint(3))), quality=90)
    (melanoma / "cut.jpg").write_bytes(encode(paint(80))[:-200])
    (melanoma / "notes.txt").write_text("no picture")
    for n in range(2):  # leaves one vascular lesion
        vascular = root / "Train" / "vascular lesion" / f"{n}.jpg"
        (root / "test" / "nevus" / f"v{n}.jpg").write_bytes(vascular.read_bytes())
    return root


def settings_for(root: Path, *sets: str, taxonomy: str | None = "isic9") -> BuildSettings:
    return load_build_settings(root, ["workers=1", *sets], taxonomy)


def test_a_folder_becomes_a_dataset(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = build(settings_for(root), out)
    assert {path.name for path in out.iterdir()} == DATASET
    assert summary.issues == {
        "conflicting-duplicate": 8,
        "exact-duplicate": 1,
        "near-duplicate": 1,
        "damaged": 1,
        "not-a-picture": 1,
        "class-too-small": 1,
    }
    assert (summary.exact_conflicts, summary.near_conflicts) == (3, 1)
    assert summary.dropped_classes.keys() == {"Vascular_Lesion"}
    assert "Dermatofibroma" in summary.absent_classes
    assert summary.found == summary.kept + sum(summary.issues.values())
    assert load_taxonomy(out / "taxonomy.yaml").keys == ("Melanoma", "Nevus")
    stored = json.loads((out / "summary.json").read_text())
    assert stored["kept"] == summary.kept
    by_class = {row["label"]: row for row in stored["funnel"]}
    assert by_class["Vascular_Lesion"] == {
        "label": "Vascular_Lesion",
        "named": 3,
        "fetched": 3,
        "screened": 3,
        "distinct": 1,
        "kept": 0,
        "lost": {"conflicting-duplicate": 2, "class-too-small": 1},
    }
    assert [by_class["Melanoma"][stage] for stage in STAGES] == [10, 9, 8, 6, 6]
    assert [by_class["Dermatofibroma"][stage] for stage in STAGES] == [0] * 5
    kept = [row["kept"] > 0 for row in stored["funnel"]]
    assert kept == sorted(kept), "classes of which nothing is kept come first"

    records = read_manifest(out)
    assert Counter(record.label for record in records) == {"Nevus": 10, "Melanoma": 6}
    for label in ("Nevus", "Melanoma"):
        splits = {record.split for record in records if record.label == label}
        assert splits == {"train", "val", "calibration", "test"}
    for record in records:
        assert (out / record.path).read_bytes() == (root / record.source_url).read_bytes()
        assert (record.width, record.height) == (120, 96)
        assert len(record.perceptual_hash) == 16
    urls = [r.source_url for r in records] + [issue.url for issue in read_issues(out)]
    files = [path for path in root.rglob("*") if path.is_file()]
    assert sorted(urls) == sorted(path.relative_to(root).as_posix() for path in files)


def test_the_summary_tells_what_a_person_must_know(root: Path, tmp_path: Path) -> None:
    add_a_broken_class(root)
    summary = build(settings_for(root), tmp_path / "out")
    console = Console(record=True, width=200)
    print_summary(summary, console)
    reported = console.export_text()
    # Its images were found: it is wrong to say that there were none.
    assert "Dermatofibroma" not in summary.absent_classes
    assert f"Lost class Dermatofibroma: {LOST}." in reported
    assert "No image was found of Actinic_Keratosis, Basal" in reported
    funnel = reported[reported.index("not kept") :]
    assert funnel.index("Dermatofibroma") < funnel.index("Actinic") < funnel.index("Melanoma")
    assert "Train and test are merged" in reported
    assert "16 of 33 images kept" in reported
    assert "Dropped class Vascular_Lesion: 1 of 3 images are left" in reported
    assert "under two labels with the same bytes: 3; pairs" in reported
    assert "│ Nevus" in reported


def test_the_same_input_gives_the_same_dataset(root: Path, tmp_path: Path) -> None:
    def content(out: Path, *sets: str) -> list[Any]:
        build(settings_for(root, *sets), out)
        return [dataclasses.replace(record, retrieved="") for record in read_manifest(out)]

    first = content(tmp_path / "a")
    assert content(tmp_path / "b") == first
    assert content(tmp_path / "a") == first, "building again into the same folder"
    assert content(tmp_path / "c", "seed=1") != first


def test_the_saved_recipe_builds_the_same(root: Path, tmp_path: Path) -> None:
    settings = settings_for(root, "screen.min_side=32")
    build(settings, tmp_path / "a")
    assert load_build_settings(tmp_path / "a" / "recipe.yaml") == settings


def add_a_broken_class(root: Path) -> None:
    for number in range(4):
        file = save(root / "Train" / "dermatofibroma" / f"{number}.jpg", paint(200 + number))
        file.write_bytes(file.read_bytes()[:-200])


def test_without_a_taxonomy_the_folders_are_the_classes(root: Path, tmp_path: Path) -> None:
    add_a_broken_class(root)
    summary = build(settings_for(root, taxonomy=None), tmp_path / "out")
    assert summary.lost_classes == {"dermatofibroma": LOST}
    taxonomy = load_taxonomy(tmp_path / "out" / "taxonomy.yaml")
    assert taxonomy.keys == ("melanoma", "nevus")
    assert [(each.urgency, each.icd10) for each in taxonomy.classes] == [
        ("urgent", "C43.9"),
        ("routine", "D22.9"),
    ]
    stored = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (
        "class 'melanoma' is taken for Melanoma (skin100), ICD-10 C43.9, urgent, by its name."
        in (stored["notes"])
    )


def test_a_dangerous_class_without_urgency_stops_every_kind_of_build(
    root: Path, tmp_path: Path
) -> None:
    (root / "Train" / "melanoma").rename(root / "Train" / "skin cancer")
    out = tmp_path / "out"
    table = tmp_path / "table.csv"
    table.write_text(
        "file,label,licence,attribution,group,skin_type,url\na.jpg,nevus,,,,,http://a.example/a\n"
        "b.jpg,Hautkrebs,,,,,http://a.example/b\n"
    )
    shards = tmp_path / "hub"
    shards.mkdir()
    (shards / "metadata.csv").write_text("file_name,label\na.jpg,nevus\nb.jpg,malignant\n")
    recipe = tmp_path / "recipe.yaml"
    for source in (
        f"kind: folder, path: {root}",
        f"kind: files, path: {table}",
        f"kind: table, path: {table}",
        f"kind: huggingface, path: {shards}",
    ):
        recipe.write_text(f"name: n\nfetch: {{contact: me}}\nsources: [{{{source}}}]\n")
        with pytest.raises(UserError, match="looks like a cancer but has no urgency"):
            build(load_build_settings(recipe), out)
        assert not out.exists()
    settings = load_build_settings(root, ["workers=1"], None, ["skin cancer=urgent"])
    build(settings, out)
    taxonomy = load_taxonomy(out / "taxonomy.yaml")
    assert taxonomy["skin_cancer"].urgency == "urgent"
    assert load_build_settings(out / "recipe.yaml").urgency == {"skin cancer": "urgent"}
    with pytest.raises(UserError, match="write CLASS=urgent"):
        load_build_settings(root, [], None, ["melanoma=now"])


def test_a_taxonomy_file_without_urgencies_stops_a_build(root: Path, tmp_path: Path) -> None:
    mine, out = tmp_path / "mine.yaml", tmp_path / "out"
    mine.write_text(
        "name: mine\ntitle: Mine\nclasses: [{key: nevus, name: N}, {key: melanoma, name: M}]\n"
    )
    with pytest.raises(UserError, match="'melanoma' looks like a cancer"):
        build(settings_for(root, taxonomy=str(mine)), out)
    assert not out.exists()


def test_few_strange_labels_are_issues(root: Path, tmp_path: Path) -> None:
    fill(root / "Train" / "poison ivy", 3, 90)
    summary = build(settings_for(root), tmp_path / "out")
    assert summary.issues["unknown-label"] == 3


def test_boxes_follow_the_bytes_and_must_fit(root: Path, tmp_path: Path) -> None:
    names = ["again.jpg", "4.jpg", "5.jpg"]
    sizes = [(120, 96), (999, 96), (120, 96)]
    for split in ("Train", "test"):
        for path in list((root / split).rglob("*.jpg")):
            if path.parent.name != "nevus":
                path.rename(path.with_name(f"{path.parent.name} {path.name}"))
    for path in list((root / "test" / "nevus").glob("?.jpg")):
        path.rename(path.with_name(f"test {path.name}"))
    coco = {
        "images": [
            {"id": n, "file_name": name, "width": size[0], "height": size[1]}
            for n, (name, size) in enumerate(zip(names, sizes, strict=True))
        ],
        "categories": [{"id": 0, "name": "lesion"}],
        "annotations": [{"image_id": 0, "category_id": 0, "bbox": [1, 2, 3, 4]}],
    }
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps(coco))
    asked = f"boxes={{path: {path}, unannotated: negative}}"
    summary = build(settings_for(root, asked), tmp_path / "out")
    boxes = {record.source_url: record.boxes for record in read_manifest(tmp_path / "out")}
    assert boxes["Train/nevus/0.jpg"] == (Box(1, 2, 4, 6, "lesion", "boxes.json"),)
    assert boxes["Train/nevus/5.jpg"] == ()
    assert boxes["Train/nevus/4.jpg"] is None
    assert summary.boxed == 2
    assert any("in another size, such as 4.jpg" in note for note in summary.notes)


def test_bad_input_writes_nothing(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def refused(said: str, settings: BuildSettings, where: Path = out) -> None:
        with pytest.raises(UserError, match=said):
            build(settings, where)
        assert not out.exists()

    wrong = tmp_path / "wrong.yaml"
    taxonomy_of(["acne", "wart"], "wrong")[0].save(wrong)
    refused("wrong does not have the labels of 28 of 28", settings_for(root, taxonomy=str(wrong)))
    refused("there is no taxonomy 'isic8'", settings_for(root, taxonomy="isic8"))
    refused("lies inside the source folder", settings_for(root), root / "out")
    missing = settings_for(root, "boxes=nowhere.json")
    refused("does not exist; give a file or folder of boxes", missing)
    table = "groups.tables=[{path: no.csv, key_column: a, group_column: b}]"
    refused(r"no\.csv does not exist", settings_for(root, table))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    refused(r"has other files \(thesis.tex\)", settings_for(root), tmp_path / "other")
    refused("is a file; give a new", settings_for(root), tmp_path / "other" / "thesis.tex")


def test_sources_that_do_not_exist_or_make_no_sense_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist"):
        load_build_settings(tmp_path / "nowhere")
    (tmp_path / "picture.jpg").touch()
    with pytest.raises(UserError, match=r"neither a folder .* nor a recipe"):
        load_build_settings(tmp_path / "picture.jpg")
    with pytest.raises(UserError, match="did you mean 'radius'"):
        load_build_settings(tmp_path, ["dedup.radios=3"])


def test_cleaning_that_leaves_one_class_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    fill(root / "acne", 5, 0)
    for n in range(3):
        save(root / "wart" / f"{n}.jpg", paint(30), quality=60 + 10 * n)
    with pytest.raises(UserError, match=r"only 1 of 2 classes .*\(wart: 1 of 3"):
        build(settings_for(root, taxonomy=None), tmp_path / "out")
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"store", "copies", ".shards"}, "what the next build goes on with"


def test_images_that_all_fail_the_screening_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"can be used \(27 too-small, 1 .*\); check"):
        build(settings_for(root, "screen.min_side=500"), tmp_path / "out")


def test_a_build_that_fails_while_writing_leaves_the_old_dataset(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    build(settings_for(root), out)
    before = {path: path.read_bytes() for path in out.glob("[!.]*.*")}

    def full_disk(folder: Path, records: object) -> None:
        (folder / "manifest.parquet").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("skindx.data.build.build_dataset.write_manifest", full_disk)
    with pytest.raises(UserError, match="is full; free some space"):
        build(settings_for(root, "seed=5"), out)
    assert {path: path.read_bytes() for path in out.glob("[!.]*.*")} == before
    monkeypatch.undo()
    build(settings_for(root, "seed=5"), out)
    assert "seed: 5" in (out / "recipe.yaml").read_text()


def test_a_stored_file_that_was_exchanged_is_found(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(settings_for(root), out)
    record = read_manifest(out)[0]
    (out / record.path).write_bytes(encode(paint(200)))
    summary = build(settings_for(root), out)
    assert summary.issues["changed"] == 1
    (issue,) = [issue for issue in read_issues(out) if issue.reason == "changed"]
    assert (issue.url, issue.sha256) == (record.source_url, record.sha256)


def test_progress_reaches_its_end_in_every_stage(root: Path, tmp_path: Path) -> None:
    last: dict[str, tuple[int, int]] = {}
    build(
        settings_for(root),
        tmp_path / "out",
        progress=lambda stage, done, total: last.update({stage: (done, total)}),
    )
    assert last["screen"][0] == last["screen"][1] > 0
    assert last["compare"][0] == last["compare"][1] > 0

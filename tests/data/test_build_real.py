"""The nine-class folder of real dermoscopic images, with the traps that are known to be in it."""

import csv
import hashlib
import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from skindx.data.build.build_dataset import BuildSummary, build, load_build_settings
from skindx.data.manifest import Issue, Record, read_issues, read_manifest
from skindx.taxonomy import load_taxonomy

pytestmark = pytest.mark.real

Built = tuple[BuildSummary, list[Record], list[Issue], Path]


@pytest.fixture(scope="module")
def built(real: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build without the search for copies, which takes longer than all the rest."""
    return _build(real, tmp_path_factory.mktemp("isic9") / "out", "dedup.copies='off'")


def test_some_of_its_traps_are_found(real: Path, tmp_path: Path) -> None:
    """The suite's part: 30 images of each class, and 20 pairs of one image under two labels."""
    files = sorted((real / "isic9").glob("*/*/*.jpg"))
    by_class, by_bytes = defaultdict(list), defaultdict(list)
    for file in files:
        by_class[file.parent.name].append(file)
        by_bytes[hashlib.sha256(file.read_bytes()).hexdigest()].append(file)
    under_two = [same for same in by_bytes.values() if len({f.parent.name for f in same}) == 2]
    seborrheic = set(by_class.pop("seborrheic keratosis"))
    traps = [same for same in under_two if seborrheic & {*same}][:20]
    again = {file for same in by_bytes.values() if len(same) > 1 for file in same}
    chosen = [file for same in traps for file in same]
    for every in by_class.values():
        chosen += [file for file in every if file not in again][:30]
    for file in chosen:
        place = tmp_path / file.relative_to(real)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    (tmp_path / "tables").symlink_to(real / "tables")
    summary, records, issues, _ = _build(tmp_path, tmp_path / "out", "dedup.copies='off'")
    assert summary.found == len(chosen) == len(records) + len(issues)
    assert summary.exact_conflicts == len(traps) == 20
    assert len({record.label for record in records}) == 8
    assert summary.issues["conflicting-duplicate"] == 40
    assert summary.kept >= 230
    check_sides(records, real, least=50)


def _build(real: Path, out: Path, *overrides: str) -> Built:
    recipe = Path(__file__).parents[2] / "data" / "isic9.yaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKINDX_REAL", str(real))
        summary = build(load_build_settings(recipe, overrides), out)
    return summary, read_manifest(out), read_issues(out), out


@pytest.mark.long
def test_eight_classes_remain_and_the_ninth_is_reported(built: Built) -> None:
    summary, records, issues, out = built
    assert summary.dropped_classes.keys() == {"Seborrheic_Keratosis"}
    labels = {record.label for record in records}
    assert len(labels) == 8
    assert set(load_taxonomy(out / "taxonomy.yaml").keys) == labels
    assert summary.found == 2359 == len(records) + len(issues)


@pytest.mark.long
def test_all_155_images_under_two_labels_are_found(built: Built) -> None:
    summary, records, issues, _ = built
    assert summary.exact_conflicts == 155
    labels = defaultdict(set)
    for issue in issues:
        if issue.reason == "conflicting-duplicate":
            labels[issue.sha256].add(issue.label)
    contested = [names for names in labels.values() if len(names) == 2]
    assert contested.count({"Melanoma", "Seborrheic_Keratosis"}) == 78
    assert contested.count({"Actinic_Keratosis", "Nevus"}) == 77
    assert not labels.keys() & {record.sha256 for record in records}


@pytest.mark.long
def test_no_lesion_is_on_two_sides(built: Built, real: Path) -> None:
    _, records, _, _ = built
    check_sides(records, real)


@pytest.mark.long
def test_families_of_copies_take_no_image_away_and_split_no_lesion(
    built: Built, real: Path, tmp_path: Path
) -> None:
    plain, _, _, _ = built
    summary, records, _, _ = _build(real, tmp_path / "out")
    assert (summary.kept, summary.issues) == (plain.kept, plain.issues)
    assert summary.copies.families > 0
    check_sides(records, real)


def check_sides(records: list[Record], real: Path, least: int = 900) -> None:
    with (real / "tables" / "HAM10000_metadata.csv").open(newline="") as file:
        lesions = {row["image_id"]: row["lesion_id"] for row in csv.DictReader(file)}
    sides = defaultdict(set)
    for record in records:
        found = re.search(r"ISIC_\d{7}", record.source_url)
        if found and found.group() in lesions:
            sides[lesions[found.group()]].add(record.split)
    assert len(sides) > least
    assert all(len(splits) == 1 for splits in sides.values())


@pytest.mark.long
def test_hardly_anything_sound_is_taken_away(built: Built) -> None:
    # The images were looked at: three near duplicates are true ones, and none is a bad image.
    summary, _, _, _ = built
    assert summary.issues == {
        "conflicting-duplicate": 311,
        "exact-duplicate": 4,
        "near-duplicate": 3,
        "class-too-small": 2,
    }
    assert summary.kept == 2039

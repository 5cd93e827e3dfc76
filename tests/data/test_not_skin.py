"""Images that show no skin in a build: flagged, dropped or not asked for; scores from a table."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from answering import write_answer
from foreign_images import document, landscape, warm_screenshot
from paint_images import encode, save
from skin_photo import skin_pixels

from skindx.core.errors import UserError
from skindx.data.answer_log import DECISIONS
from skindx.data.build.build_dataset import BuildSummary, build, load_build_settings
from skindx.data.build.build_run import as_before
from skindx.data.decisions import (
    FLAGS,
    Flag,
    read_flags,
    read_skin_answers,
    undecided,
    write_flags,
)
from skindx.data.manifest import Record, read_issues, read_manifest
from skindx.data.removal.takedown import carry_out, plan
from skindx.data.screening.screen import ScreenSettings, read_shard, screen_bytes, write_shard
from skindx.review.dataset_review import DatasetReview

FOREIGN = {"document": document, "screenshot": warm_screenshot}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a folder of two classes, a page and a screenshot among the skin, and its dataset."""
    root = tmp_path_factory.mktemp("not skin") / "pictures"
    for n in range(6):
        for shift, label in enumerate(("acne", "wart")):
            skin = skin_pixels(240, 180, seed=100 * shift + n, skin_type=(1, 3, 5, 6)[n % 4])
            save(root / label / f"{shift}{n}.jpg", skin, quality=90)
    for name, draw in FOREIGN.items():
        save(root / "acne" / f"{name}.png", draw(np.random.default_rng(0)))
    make(root, root.parent / "data")
    return root, root.parent / "data"


@pytest.fixture
def root(built: tuple[Path, Path]) -> Path:
    return built[0]


@pytest.fixture
def out(built: tuple[Path, Path], tmp_path: Path) -> Path:
    """Return a copy of the dataset."""
    return Path(shutil.copytree(built[1], tmp_path / "out"))


def make(root: Path, out: Path, *sets: str) -> BuildSummary:
    return build(load_build_settings(root, ["workers=1", *sets]), out)


def flagged(out: Path) -> set[str]:
    names = {record.sha256: Path(record.source_url).stem for record in read_manifest(out)}
    return {names[flag.sha256] for flag in read_flags(out) if flag.reason == "not-skin"}


def manifest(out: Path) -> list[Record]:
    return [replace(record, retrieved="") for record in read_manifest(out)]


def sha256s(out: Path) -> dict[str, str]:
    return {Path(record.source_url).stem: record.sha256 for record in read_manifest(out)}


def test_a_new_dataset_keeps_and_flags_them(out: Path) -> None:
    summary = json.loads((out / "summary.json").read_text())
    assert summary["kept"] == 14
    assert summary["issues"] == {}
    assert flagged(out) == set(FOREIGN)
    assert summary["flagged"] == {"not-skin": 2}
    assert {flag.detail.split(",")[0] for flag in read_flags(out)} == {
        "hardly any colour of skin",
        "flat colours",
    }
    waiting = {item.key[0] for item in DatasetReview(out).items if item.reasons}
    assert waiting == {sha256s(out)[name] for name in FOREIGN}


def test_dropped_they_have_a_reason_and_leave_the_rest_as_it_was(root: Path, out: Path) -> None:
    before = {record.sha256 for record in read_manifest(out)}
    summary = make(root, out, "screen.not_skin=drop")
    assert summary.issues == {"not-skin": 2}
    assert summary.flagged == {}
    assert read_flags(out) == []
    dropped = {Path(issue.url).stem: issue for issue in read_issues(out)}
    assert dropped.keys() == set(FOREIGN)
    assert dropped["screenshot"].detail.startswith("flat colours")
    funnel = json.loads((out / "summary.json").read_text())["funnel"]
    assert {row["label"]: row["lost"] for row in funnel}["acne"] == {"not-skin": 2}
    shown = {item.key[0]: item.reasons for item in DatasetReview(out).items if not item.kept}
    assert shown == dict.fromkeys((one.sha256 for one in dropped.values()), ("not-skin",))
    left = before - {issue.sha256 for issue in dropped.values()}
    assert {record.sha256 for record in read_manifest(out)} == left


def test_off_asks_nothing_and_takes_back_what_was_flagged(root: Path, out: Path) -> None:
    mine = Flag(next(iter(sha256s(out).values())), "face", 0.7, "somebody")
    write_flags(out, [mine], ["face"])
    summary = make(root, out, "screen.not_skin=off")
    assert summary.flagged == {}
    assert [(flag.sha256, flag.reason) for flag in read_flags(out)] == [(mine.sha256, "face")]
    again = make(root, out, "screen.not_skin=review")
    assert len(read_flags(out)) == 3
    assert any("2 not-skin" in line and "skindx review" in line for line in again.lines())


def test_what_a_person_keeps_is_neither_dropped_nor_shown_again(root: Path, out: Path) -> None:
    kept, removed = (sha256s(out)[name] for name in FOREIGN)
    (out / DECISIONS).write_text(f"sha256,verdict\n{kept},keep\n{removed},remove\n")
    assert kept not in undecided(out, ["not-skin"])
    summary = make(root, out, "screen.not_skin=drop")
    assert kept in sha256s(out).values()
    assert removed not in sha256s(out).values()
    assert summary.issues == {"not-skin": 1}


def test_the_next_build_obeys_what_a_person_says_of_skin(root: Path, out: Path) -> None:
    skin, page = (sha256s(out)[name] for name in FOREIGN)
    write_answer(out, "skin", skin)
    write_answer(out, "not skin", page)
    summary = make(root, out)
    assert summary.flagged == {}
    assert summary.issues == {"reviewed": 1}
    (issue,) = read_issues(out)
    assert issue.sha256 == page
    assert issue.detail == "a person who looked at it said that it shows no skin"
    assert skin in sha256s(out).values()
    review = DatasetReview(out)
    assert {item.key[0]: item.kept for item in review.items if item.reasons} == {page: False}
    write_answer(out, "skin", page)
    assert make(root, out).issues == {}
    assert page in sha256s(out).values()
    # Of what a build dropped a person says the same.
    write_answer(out, "not skin", page)
    assert make(root, out, "screen.not_skin=drop").issues == {"not-skin": 1}
    assert skin in sha256s(out).values()
    # Removed it is named nowhere.
    carry_out(plan([out], sha256s=[skin]))
    assert read_skin_answers(out).keys() == {page}


def test_a_dataset_of_before_stays_as_it_was_until_asked(root: Path, out: Path) -> None:
    recipe = yaml.safe_load((out / "recipe.yaml").read_text())
    del recipe["screen"]["not_skin"]
    recipe["screen"]["ood"] = None  # as 0.2 saved it
    (out / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (out / FLAGS).unlink()
    before = manifest(out)
    for _ in range(2):  # what the first rebuild stores must not switch the second one on
        summary = make(root, out)
        assert any(note.startswith("screen.not_skin stays off") for note in summary.notes)
        assert manifest(out) == before
        assert not (out / FLAGS).exists()
    assert make(root, out, "screen.not_skin=review").flagged == {"not-skin": 2}


def test_which_settings_stay(tmp_path: Path, root: Path) -> None:
    asked = load_build_settings(root, ["screen.not_skin=review"])
    plain = load_build_settings(root)
    assert as_before(plain, tmp_path) == (plain, [])
    for stored, stays in (({}, True), ({"not_skin": "off"}, True), ({"not_skin": "drop"}, False)):
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"screen": stored}))
        settings, notes = as_before(plain, tmp_path)
        assert (settings.screen.not_skin == "off") == bool(notes) == stays
        assert as_before(asked, tmp_path) == (asked, [])


def test_verdicts_keep_what_was_seen_in_a_shard(tmp_path: Path) -> None:
    settings = ScreenSettings()
    images = (FOREIGN["document"](np.random.default_rng(0)), skin_pixels(240, 180))
    verdicts = [screen_bytes(encode(pixels), settings, ("perceptual",)) for pixels in images]
    assert [verdict.shows for verdict in verdicts] == ["colours", ""]
    write_shard(tmp_path / "shard.parquet", verdicts)
    read = read_shard(tmp_path / "shard.parquet")
    assert [(v.not_skin, v.shows) for v in read] == [(v.not_skin, v.shows) for v in verdicts]
    off = settings.model_copy(update={"not_skin": "off"})
    assert screen_bytes(encode(images[0]), off, ("perceptual",)).not_skin == 0


def test_all_dropped_is_one_sentence(tmp_path: Path) -> None:
    for n in range(3):
        for label in ("acne", "wart"):
            save(tmp_path / "in" / label / f"{n}.jpg", landscape(np.random.default_rng(n)))
    with pytest.raises(UserError, match=r"none of the 6 images .*\(6 not-skin\)"):
        make(tmp_path / "in", tmp_path / "out", "screen.not_skin=drop")
    assert not (tmp_path / "out" / "manifest.parquet").exists()


def test_a_take_down_counts_the_flags_anew(out: Path) -> None:
    carry_out(plan([out], sha256s=[sha256s(out)["document"]]))
    assert json.loads((out / "summary.json").read_text())["flagged"] == {"not-skin": 1}
    assert len(read_flags(out)) == 1

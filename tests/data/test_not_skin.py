"""Images that show no skin in a build: flagged, dropped or not asked for; scores from a table."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from paint_pictures import save
from skin_photo import skin_pixels

from skindx.data.build.build import BuildSummary, build, load_build_settings
from skindx.data.gallery import write_gallery
from skindx.data.manifest import read_issues, read_manifest
from skindx.data.review import DECISIONS, FLAGS, Flag, read_flags, write_flags
from skindx.data.screening.ood_table import OOD, OodScores, read_ood, write_ood
from skindx.data.synthetic.no_skin import KINDS, WARM
from skindx.errors import UserError

FOREIGN = {"document": KINDS["document"], "screenshot": WARM["warm screenshot"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder of two classes; one holds a page and a screenshot among the skin."""
    root = tmp_path / "pictures"
    for n in range(8):
        for shift, label in enumerate(("acne", "wart")):
            skin = skin_pixels(240, 180, seed=100 * shift + n, skin_type=(1, 3, 5, 6)[n % 4])
            save(root / label / f"{n}.jpg", skin, quality=90)
    for name, draw in FOREIGN.items():
        save(root / "acne" / f"{name}.png", draw(np.random.default_rng(0)))
    return root


def make(root: Path, out: Path, *sets: str) -> BuildSummary:
    return build(load_build_settings(root, ["workers=1", *sets]), out)


def flagged(out: Path) -> set[str]:
    names = {record.sha256: Path(record.source_url).stem for record in read_manifest(out)}
    return {names[flag.sha256] for flag in read_flags(out) if flag.reason == "not-skin"}


def sha256s(out: Path) -> dict[str, str]:
    return {Path(record.source_url).stem: record.sha256 for record in read_manifest(out)}


def test_a_new_dataset_keeps_and_flags_them(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = make(root, out)
    assert summary.kept == 18
    assert summary.issues == {}
    assert flagged(out) == set(FOREIGN)
    assert summary.flagged == {"not-skin": 2}
    assert json.loads((out / "summary.json").read_text())["flagged"] == {"not-skin": 2}
    assert any("2 not-skin" in line and "skindx gallery" in line for line in summary.lines())
    assert {flag.detail.split(",")[0] for flag in read_flags(out)} == {
        "hardly any colour of skin",
        "flat colours",
    }
    index = write_gallery(out, out / "gallery")
    assert "not-skin" in index.read_text()
    page = (out / "gallery" / "review-0-0-1.html").read_text()
    for name in FOREIGN:
        assert sha256s(out)[name] in page


def test_dropped_they_have_a_reason_and_leave_the_rest_as_it_was(
    root: Path, tmp_path: Path
) -> None:
    make(root, tmp_path / "review")
    out = tmp_path / "out"
    summary = make(root, out, "screen.not_skin=drop")
    assert summary.issues == {"not-skin": 2}
    assert summary.flagged == {}
    assert not (out / FLAGS).exists()
    dropped = {Path(issue.url).stem: issue for issue in read_issues(out)}
    assert dropped.keys() == set(FOREIGN)
    assert dropped["screenshot"].detail.startswith("flat colours")
    funnel = json.loads((out / "summary.json").read_text())["funnel"]
    assert {row["label"]: row["lost"] for row in funnel}["acne"] == {"not-skin": 2}
    dropped_page = write_gallery(out, out / "gallery").parent / "dropped-0-0-1.html"
    assert dropped["document"].sha256 in dropped_page.read_text()
    assert {r.sha256 for r in read_manifest(out)} == {
        r.sha256 for r in read_manifest(tmp_path / "review")
    } - {issue.sha256 for issue in dropped.values()}


def test_off_asks_nothing_and_takes_back_what_was_flagged(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(root, out)
    mine = Flag(next(iter(sha256s(out).values())), "face", 0.7, "somebody")
    write_flags(out, [mine], ["face"])
    summary = make(root, out, "screen.not_skin=off")
    assert summary.flagged == {}
    assert [(flag.sha256, flag.reason) for flag in read_flags(out)] == [(mine.sha256, "face")]
    make(root, out, "screen.not_skin=review")
    assert len(read_flags(out)) == 3


def test_what_a_person_keeps_is_neither_dropped_nor_shown_again(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(root, out)
    kept, removed = (sha256s(out)[name] for name in FOREIGN)
    (out / DECISIONS).write_text(f"sha256,verdict\n{kept},keep\n{removed},remove\n")
    make(root, out)
    page = write_gallery(out, out / "gallery").parent / "review-0-0-1.html"
    assert kept not in page.read_text()
    summary = make(root, out, "screen.not_skin=drop")
    assert kept in sha256s(out).values()
    assert removed not in sha256s(out).values()
    assert summary.issues == {"not-skin": 1}


def test_a_dataset_of_before_stays_as_it_was_until_asked(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(root, out, "screen.not_skin=off")
    recipe = yaml.safe_load((out / "recipe.yaml").read_text())
    del recipe["screen"]["not_skin"], recipe["screen"]["ood"]
    (out / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    before = (out / "manifest.parquet").read_bytes()
    for _ in range(2):  # what the first rebuild stores must not switch the second one on
        summary = make(root, out)
        assert any(note.startswith("screen.not_skin stays off") for note in summary.notes)
        assert (out / "manifest.parquet").read_bytes() == before
        assert not (out / FLAGS).exists()
    assert make(root, out, "screen.not_skin=review").flagged == {"not-skin": 2}
    assert make(root, out).flagged == {"not-skin": 2}


def test_all_dropped_is_one_sentence(root: Path, tmp_path: Path) -> None:
    for n in range(8):
        for label in ("acne", "wart"):
            save(root / label / f"{n}.jpg", KINDS["landscape"](np.random.default_rng(n)))
    with pytest.raises(UserError, match=r"18 not-skin.* or 'screen'|18 not-skin"):
        make(root, tmp_path / "out", "screen.not_skin=drop")
    assert not (tmp_path / "out" / "manifest.parquet").exists()


def test_a_take_down_counts_the_flags_anew(root: Path, tmp_path: Path) -> None:
    from skindx.data.removal.takedown import take_down

    out = tmp_path / "out"
    make(root, out)
    take_down([out], [sha256s(out)["document"]], reason="asked")
    assert json.loads((out / "summary.json").read_text())["flagged"] == {"not-skin": 1}
    assert len(read_flags(out)) == 1


def scored(out: Path, path: Path, high: str) -> Path:
    names = sha256s(out)
    scores = [9.0 if name == high else 0.5 for name in names]
    write_ood(path, OodScores(tuple(names.values()), np.array(scores), "a net, 0123"))
    return path


def test_a_table_of_scores_flags_and_never_drops(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(root, out)
    table = scored(out, tmp_path / OOD, "3")
    for mode in ("review", "drop", "off"):
        summary = make(root, out, f"screen.not_skin={mode}", f"screen.ood.path={table}")
        flags = [flag for flag in read_flags(out) if flag.reason == "off-topic"]
        assert [flag.detail for flag in flags] == ["unusual: 9.0 by a net, 0123"] * len(flags)
        assert len(flags) == 1
        assert summary.flagged["off-topic"] == 1
        assert flags[0].sha256 in sha256s(out).values()
        assert flags[0].score == pytest.approx(9 / 14)
    none = make(root, out, f"screen.ood.path={table}", "screen.ood.threshold=10")
    assert "off-topic" not in none.flagged
    assert any("18 of 18 images have an OOD score" in note for note in none.notes)


def test_flags_of_an_audit_stay_where_the_recipe_names_no_table(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(root, out)
    sha256 = sha256s(out)["3"]
    write_flags(out, [Flag(sha256, "off-topic", 0.6, "unusual")], ["off-topic"])
    make(root, out)
    assert sha256 in {flag.sha256 for flag in read_flags(out) if flag.reason == "off-topic"}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (None, "does not exist"),
        ({"sha256": ["a"]}, "no table of OOD scores"),
        ({"sha256": ["a"], "score": ["high"], "model": ["m"]}, "no table of OOD scores"),
        ({"sha256": ["a"], "score": [None], "model": ["m"]}, "no numbers"),
        ({"sha256": ["a"], "score": [np.inf], "model": ["m"]}, "no numbers"),
        ({"sha256": ["a", "b"], "score": [1.0, 2.0], "model": ["m", "n"]}, "2 models"),
        ({"sha256": ["a"], "score": [1.0], "model": ["m"]}, "knows none of the 18 images"),
    ],
)
def test_a_table_that_is_none_is_one_sentence_and_nothing_changes(
    root: Path, tmp_path: Path, table: dict[str, list[object]] | None, said: str
) -> None:
    out, path = tmp_path / "out", tmp_path / "scores.parquet"
    if table:
        pq.write_table(pa.table(table), path)
    with pytest.raises(UserError, match=said) as caught:
        make(root, out, f"screen.ood.path={path}")
    assert "--off-topic" in str(caught.value)
    assert not (out / "manifest.parquet").exists()


def test_scores_come_back_as_they_were(tmp_path: Path) -> None:
    scores = OodScores(("a", "b"), np.array([0.5, -2.25]), "m")
    write_ood(tmp_path / OOD, scores)
    read = read_ood(tmp_path / OOD)
    assert (read.sha256s, read.model) == (scores.sha256s, scores.model)
    np.testing.assert_array_equal(read.scores_N, scores.scores_N)

"""Take-down: an image and its copies go from everywhere, and do not come back."""

import csv
import dataclasses
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from hostile_images import strew
from local_site import Answer, LocalSite, category, figures, html
from paint_images import encode, paint, save

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.data.blocklist import Blocked, BlockList, join, read_blocklist, write_blocklist
from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.copies.hash_links import near_links
from skindx.data.crawl.fetch_settings import OriginPolicy
from skindx.data.decisions import Flag, read_decisions, read_flags, write_flags
from skindx.data.layout import BLOCKLIST, LEDGER, RECIPE, stored_files
from skindx.data.ledger import read_ledger
from skindx.data.manifest import Issue, Record, read_issues, read_manifest
from skindx.data.recipe import BuildSettings
from skindx.data.removal.takedown import RemovalPlan, carry_out, plan
from skindx.data.splits.freeze import read_places
from skindx.imaging.hashes import hash_thumbnails, thumbnail


def fill(root: Path, count: int = 6) -> Path:
    for shift, label in enumerate(("acne", "wart")):
        for number in range(count):
            save(root / label / f"{number}.jpg", paint(1000 * shift + number))
    return root


def make(root: Path, out: Path, *sets: str) -> dict[str, Record]:
    build(load_build_settings(root, ["workers=1", *sets]), out)
    return {record.source_url: record for record in read_manifest(out)}


def take_down(*datasets: Path, **asked: object) -> RemovalPlan:
    planned = plan(datasets, **asked)
    carry_out(planned)
    return planned


def issues_of(dataset: Path, reason: str = "taken-down") -> dict[str, Issue]:
    return {issue.url: issue for issue in read_issues(dataset) if issue.reason == reason}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fill(tmp_path / "pictures")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of images, and the dataset built of them, which `out` describes."""
    folder = tmp_path_factory.mktemp("made")
    root = fill(folder / "pictures")
    (root / "acne" / "again.jpg").write_bytes((root / "acne" / "0.jpg").read_bytes())
    save(root / "acne" / "turned.jpg", np.ascontiguousarray(np.rot90(paint(0))), quality=60)
    tiny = cv2.resize(paint(0), (60, 48), interpolation=cv2.INTER_AREA)
    save(root / "wart" / "tiny.jpg", tiny)
    make(root, folder / "out")
    return folder


@pytest.fixture
def out(made: Path, root: Path, tmp_path: Path) -> Path:
    """Return a dataset in which acne/0.jpg has an exact, a near and a tiny copy, and flags."""
    shutil.copytree(made / "pictures", root, dirs_exist_ok=True)
    out = Path(shutil.copytree(made / "out", tmp_path / "out"))
    recipe = (out / RECIPE).read_text()
    (out / RECIPE).write_text(recipe.replace(str(made), str(tmp_path)))
    records = {record.source_url: record for record in read_manifest(out)}
    sha256 = records["acne/0.jpg"].sha256
    other = records["acne/1.jpg"].sha256
    write_flags(out, [Flag(sha256, "face", 0.5), Flag(other, "text", 0.5)], ["face", "text"])
    (out / "decisions.csv").write_text(
        f"sha256,verdict,by\n{other},keep,me\n{sha256},keep,Jane Doe\n"
    )
    return out


def test_all_copies_go_from_every_table(out: Path) -> None:
    records = {record.source_url: record for record in read_manifest(out)}
    gone = records["acne/0.jpg"].sha256
    planned = take_down(out, urls=["acne/0.jpg"], reason="a patient asked")
    assert {image.known.url: image.why for image in planned.going} == {
        "acne/0.jpg": "asked",
        "acne/again.jpg": "asked",
        "acne/turned.jpg": "copy",
        "wart/tiny.jpg": "copy",
    }
    assert set(issues_of(out)) == {image.known.url for image in planned.going}
    assert issues_of(out)["acne/0.jpg"].detail.endswith(": a patient asked")
    assert [url for url in records if url != "acne/0.jpg"] == [
        record.source_url for record in read_manifest(out)
    ]
    left = {file.stem for file in (out / "store").glob("*/*")}
    assert left == {record.sha256 for record in read_manifest(out)}
    assert {flag.reason for flag in read_flags(out)} == {"text"}
    assert read_decisions(out).keys() == {records["acne/1.jpg"].sha256}
    assert gone not in read_places(out)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["kept"] == len(records) - 1
    assert summary["issues"] == {"taken-down": 4}
    assert summary["found"] == summary["kept"] + 4


def test_a_second_take_down_changes_nothing(out: Path) -> None:
    take_down(out, urls=["acne/0.jpg"])
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    again = take_down(out, urls=["acne/0.jpg"])
    assert len(again.blocked) == 3
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_planning_writes_nothing(out: Path) -> None:
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert len(plan([out], urls=["acne/0.jpg"]).going) == 4
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_exact_copies_alone(out: Path) -> None:
    planned = take_down(out, urls=["acne/0.jpg"], near=False)
    assert {image.known.url for image in planned.going} == {"acne/0.jpg", "acne/again.jpg"}
    duplicate = issues_of(out, "near-duplicate")["acne/turned.jpg"]
    assert duplicate.kept_sha256 == ""


def test_no_later_build_takes_it_in(out: Path, root: Path, tmp_path: Path) -> None:
    take_down(out, urls=["acne/0.jpg"])
    save(root / "acne" / "bright.jpg", np.clip(paint(0) * 1.05, 0, 255).astype(np.uint8))
    # The screening refuses this one before anybody compares it, and yet its bytes must not stay.
    save(root / "acne" / "small.jpg", cv2.resize(paint(0), (50, 40), interpolation=cv2.INTER_AREA))
    records = make(root, out)
    assert "acne/bright.jpg" not in records
    assert issues_of(out)["acne/bright.jpg"].detail.startswith("taken down on 2")
    names = {"acne/0.jpg", "acne/again.jpg", "acne/turned.jpg", "wart/tiny.jpg", "acne/bright.jpg"}
    names.add("acne/small.jpg")
    assert set(issues_of(out)) == names
    left = {file.stem for file in (out / "store").glob("*/*")}
    assert left == {record.sha256 for record in records.values()}
    # Another folder: its recipe names the list, or the frozen version brings it along.
    shared = make(root, tmp_path / "b", f"blocklist={json.dumps(str(out / BLOCKLIST))}")
    frozen = make(root, tmp_path / "c", f"split.frozen={json.dumps(str(out))}")
    assert set(shared) == set(frozen) == set(records)
    # What was carried along is carried on.
    assert set(
        make(root, tmp_path / "d", f"split.frozen={json.dumps(str(tmp_path / 'c'))}")
    ) == set(records)


def test_a_list_that_came_later_purges_the_old_dataset_at_once(
    out: Path, root: Path, tmp_path: Path
) -> None:
    """Killed after its first step, a rebuild has already taken out what the list names."""
    make(root, tmp_path / "b")
    take_down(tmp_path / "b", urls=["acne/0.jpg"])
    listed = f"blocklist={json.dumps(str(tmp_path / 'b' / BLOCKLIST))}"
    with pytest.raises(UserError, match="none of the"):
        make(root, out, listed, "screen.min_side=500")
    assert "acne/0.jpg" not in {record.source_url for record in read_manifest(out)}


def test_a_shared_list_gets_what_is_taken_down(root: Path, tmp_path: Path) -> None:
    shared = f"blocklist={json.dumps(str(tmp_path / 'all.jsonl'))}"
    make(root, tmp_path / "a", shared)
    take_down(tmp_path / "a", urls=["acne/2.jpg"])
    assert "acne/2.jpg" not in make(root, tmp_path / "b", shared)


def test_copies_in_other_datasets_go_and_the_group_is_shown(root: Path, tmp_path: Path) -> None:
    make(root, tmp_path / "a")
    table = tmp_path / "lesions.csv"
    table.write_text("key,lesion\n3,L\n4,L\n")
    tied = f"groups.tables=[{{path: {table}, key_column: key, group_column: lesion}}]"
    make(root, tmp_path / "b", tied)
    planned = take_down(tmp_path / "a", tmp_path / "b", urls=["acne/3.jpg"])
    assert [image.dataset.name for image in planned.going] == ["a", "b"]
    assert {image.known.url for image in planned.staying} == {
        "acne/4.jpg",
        "wart/3.jpg",
        "wart/4.jpg",
    }
    assert len(read_manifest(tmp_path / "a")) == len(read_manifest(tmp_path / "b")) == 11


def test_the_list_knows_the_manifests_that_held_it(out: Path) -> None:
    records = {record.source_url: record for record in read_manifest(out)}
    first = sha256_file(out / "manifest.parquet")
    take_down(out, urls=["acne/0.jpg"])
    second = sha256_file(out / "manifest.parquet")
    take_down(out, sha256s=[records["acne/1.jpg"].sha256])
    listed = read_blocklist(out / BLOCKLIST).by_sha
    split = records["acne/0.jpg"].split
    assert listed[records["acne/0.jpg"].sha256].manifests == {first: split}
    split = records["acne/1.jpg"].split
    assert listed[records["acne/1.jpg"].sha256].manifests == {second: split, first: split}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"urls": ["http://x/1.jpg"]}, "has no image of the URL 'http://x/1.jpg'"),
        ({"sha256s": ["12ab"]}, "'12ab' is not a SHA-256"),
        ({"sha256s": ["a" * 64]}, "has no image with --sha aaaa"),
        ({"sha256s": ["../" * 20 + "etc/"]}, "is not a SHA-256"),
    ],
)
def test_what_nobody_knows_is_reported(out: Path, asked: dict[str, list[str]], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan([out], **asked)
    assert not (out / BLOCKLIST).exists()


def test_other_tables_of_the_folder_are_purged_and_strange_ones_left(out: Path) -> None:
    sha256 = next(r.sha256 for r in read_manifest(out) if r.source_url == "acne/0.jpg")
    rows = [["note", "sha256"], ["a,b", sha256], ["c", "f" * 64], ["short"]]
    with (out / "mine.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (out / "other.csv").write_text("x,y\n1,2\n")
    (out / "empty.csv").write_text("")
    (out / "._mine.parquet").write_bytes(b"of Finder on a stick")
    for folder in {out, *(path.parent for path in stored_files(out))}:
        strew(folder)
    stored = set(stored_files(out))
    take_down(out, urls=["acne/0.jpg"])
    with (out / "mine.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [rows[0], *rows[2:]]
    assert {path.stem for path in stored} >= {record.sha256 for record in read_manifest(out)}
    assert set(stored_files(out)) < stored
    assert (out / "other.csv").read_text() == "x,y\n1,2\n"


def atlas(site: LocalSite, *sets: str) -> BuildSettings:
    raw = {
        "name": "atlas",
        "workers": 1,
        "sources": [{"kind": "atlas", "start": f"{site.origin}/"}],
        "fetch": {"allow_private": [site.netloc], "contact": "tests", "origins": {}},
    }
    raw["fetch"]["origins"] = {site.origin: OriginPolicy(concurrency=8, delay_s=0).model_dump()}
    return BuildSettings.load(None, sets, start=raw)


def test_the_crawler_never_asks_for_it_again_and_names_nobody(tmp_path: Path) -> None:
    pages = {
        "/robots.txt": Answer(status=404),
        "/": html(category("/a/", "acne"), category("/w/", "wart")),
        "/a/": html(figures(*(f"/a{n}.jpg" for n in range(5)), "/copy.jpg")),
        "/w/": html(figures(*(f"/w{n}.jpg" for n in range(5)))),
        "/copy.jpg": Answer(encode(paint(1), quality=60)),
    }
    pages |= {f"/a{n}.jpg": Answer(encode(paint(n))) for n in range(5)}
    pages |= {f"/w{n}.jpg": Answer(encode(paint(100 + n))) for n in range(5)}
    with LocalSite(pages) as site:
        out, other = tmp_path / "out", tmp_path / "other"
        build(atlas(site), out)
        url, copy = f"{site.origin}/a1.jpg", f"{site.origin}/copy.jpg"
        assert "A. Painter" in (out / LEDGER).read_text()
        take_down(out, urls=[url])
        rows = {row.url: row for row in read_ledger(out)}
        for subject in (url, copy):
            row = rows[subject]
            assert (row.status, row.path, row.creator, row.page_url) == ("taken-down", "", "", "")
        site.asked.clear()
        build(atlas(site, f"blocklist={json.dumps(str(out / BLOCKLIST))}"), other)
        # The same image at a new address comes once more, and then its address is known.
        site.pages["/w/"] = html(figures(*(f"/w{n}.jpg" for n in range(5)), "/new.jpg"))
        site.pages["/new.jpg"] = Answer(encode(paint(1), quality=90))
        build(atlas(site), out)
        assert {"/a1.jpg", "/copy.jpg"}.isdisjoint(site.asked)
        new = f"{site.origin}/new.jpg"
        for target, gone in ((other, {url, copy}), (out, {url, copy, new})):
            assert set(issues_of(target)) == gone
            for row in read_ledger(target):
                assert (row.creator == "") == (row.url in gone)
        site.asked.clear()
        build(atlas(site), out)
        assert "/new.jpg" not in site.asked
        assert new in issues_of(out)


def test_the_distance_is_that_of_the_join() -> None:
    kinds = ("perceptual", "difference")
    thumbs = np.stack([thumbnail(paint(seed)) for seed in range(40)])
    noisy = np.random.default_rng(0).normal(0, 3, thumbs.shape).astype(np.float32) + thumbs
    codes_NKO = hash_thumbnails(np.concatenate([noisy[:, ::-1], thumbs]), kinds)
    for radius in (0, 3, 6, 12):
        links = near_links(codes_NKO, radius)
        for target in range(40, 80):
            codes = {k: f"{c:016x}" for k, c in zip(kinds, codes_NKO[target, :, 0], strict=True)}
            found = BlockList([Blocked("a" * 64, codes=codes)]).near(
                codes_NKO[:target], kinds, radius
            )
            assert set(found) == {i for i, j, _ in links.tolist() if j == target}


def test_a_block_list_survives_its_file(tmp_path: Path) -> None:
    first = Blocked("a" * 64, ("http://x/1",), "a" * 64, "asked", "2026-01-01T00:00:00+00:00")
    second = dataclasses.replace(first, urls=("http://x/2",), codes={"average": "0" * 16})
    write_blocklist(tmp_path / "one", BlockList([first]))
    write_blocklist(tmp_path / "two", BlockList([second]))
    both = join([tmp_path / "one", tmp_path / "two", tmp_path / "absent"])
    assert len(both) == 1
    entry = both.by_sha["a" * 64]
    assert entry.urls == ("http://x/1", "http://x/2")
    assert entry.codes == {"average": "0" * 16}
    assert both.find("", "http://x/2") == both.find("a" * 64, "") == entry
    assert both.find("", "") is None
    write_blocklist(tmp_path / "both", both)
    assert read_blocklist(tmp_path / "both").by_sha == both.by_sha


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"sha256": "../../x"}',
        '{"sha256": 1}',
        '{"url": "x"}',
        '{"sha256": "%s", "codes": {"average": "xyz"}}' % ("a" * 64),
    ],
)
def test_a_damaged_list_blocks_the_build_not_the_image(tmp_path: Path, line: str) -> None:
    (tmp_path / BLOCKLIST).write_text(line + "\n")
    with pytest.raises(UserError, match="line 1 of the block list"):
        read_blocklist(tmp_path / BLOCKLIST)

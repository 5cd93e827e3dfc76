"""After a take-down no file that we wrote knows more than that something was taken down."""

import base64
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import Skindx
from local_site import Answer, LocalSite, category, html
from paint_images import encode, paint
from small_dataset import free_dataset

from skindx.data.box import Box
from skindx.data.boxes.annotations import Annotation, write_annotations, write_proposals
from skindx.data.build.build_dataset import build
from skindx.data.crawl.fetch_settings import OriginPolicy
from skindx.data.decisions import Flag, write_flags
from skindx.data.embedding_files import EMBEDDINGS, Embeddings, write_embeddings
from skindx.data.layout import CACHE, LABEL_REVIEW
from skindx.data.loader.pixels import open_pixels
from skindx.data.loader.source import Files
from skindx.data.manifest import Record, read_image, read_issues, read_manifest
from skindx.data.publish.assemble import publish
from skindx.data.publish.publish_formats import FORMATS
from skindx.data.publish.publish_settings import PublishSettings
from skindx.data.recipe import BuildSettings
from skindx.data.removal.takedown import carry_out, plan
from skindx.data.screening.screen import SHARDS
from skindx.imaging.resize import small_jpeg
from skindx.review.label_doubts import TABLE, Doubt, LabelReview, write_review
from skindx.review.privacy_audit import JOURNAL

JANE = "Jane Q. Victim"
MAY_NAME_IT = {"blocklist.jsonl", "ledger.jsonl", "issues.parquet"}
"""Where the URL and the SHA-256 stay, so that the image stays out."""


def figure(address: str, creator: str = "A. Painter") -> str:
    return (
        f'<figure class="picture"><a class="full" href="{address}">x</a>'
        f'<span class="licence">CC BY 4.0</span><span class="creator">{creator}</span></figure>'
    )


def pages() -> dict[str, Answer]:
    """Serve two classes of five images; /jane.jpg is Jane's and /like.jpg shows the same."""
    jane = paint(777, 240, 200)
    served = {
        f"/{c}{n}.jpg": Answer(encode(paint(100 * ord(c) + n))) for c in "aw" for n in range(5)
    }
    served |= {
        "/robots.txt": Answer(status=404),
        "/": html(category("/a/", "acne"), category("/w/", "wart")),
        "/a/": html(
            *(figure(f"/a{n}.jpg") for n in range(5)),
            figure("/jane.jpg", JANE),
            figure("/like.jpg"),
        ),
        "/w/": html(*(figure(f"/w{n}.jpg") for n in range(5))),
        "/jane.jpg": Answer(encode(jane, quality=92)),
        "/like.jpg": Answer(encode(jane, quality=40)),
    }
    return served


def recipe(site: LocalSite) -> BuildSettings:
    fetch = {"allow_private": [site.netloc], "contact": "tests", "origins": {}}
    fetch["origins"] = {site.origin: OriginPolicy(concurrency=8, delay_s=0).model_dump()}
    source = {"kind": "atlas", "start": f"{site.origin}/"}
    start = {"name": "atlas", "workers": 1, "sources": [source], "fetch": fetch}
    return BuildSettings.load(None, (), start=start)


def leave_traces(out: Path, records: list[Record], jane: Record) -> None:
    """Write all that the verbs write into a dataset folder, and what kills leave there."""
    boxes = (Box(1, 2, 30, 40),)
    drawn = [Annotation(record.sha256, "Dr. Mole", "2026-01-01", boxes) for record in records]
    write_annotations(out, drawn)
    write_proposals(out, drawn)
    write_flags(out, [Flag(jane.sha256, "face", 0.9)], ["face", "text", "intimate"])
    (out / "decisions.csv").write_text(f"sha256,verdict,by\n{jane.sha256.upper()},keep,me\n")
    vectors = np.eye(len(records), dtype=np.float32)
    names = tuple(record.sha256 for record in records)
    write_embeddings(out / EMBEDDINGS, Embeddings(names, vectors, "a model"))
    lines = [{"sha256": image.sha256, "by": "1", "found": []} for image in records]
    (out / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    doubts = [
        Doubt(n, r.sha256, r.path, r.split, r.label, "wart", 0.1, 0.8, r.source_url)
        for n, r in enumerate((jane, records[-1]), 1)
    ]
    review = LabelReview(tuple(doubts), len(records), 2, 0.9, "a model")
    write_review(out, review)
    # Versions before the review page wrote one with images.
    shown = base64.b64encode(small_jpeg(read_image(out, jane), 176)).decode()
    (out / LABEL_REVIEW).write_text(f'<img src="data:image/jpeg;base64,{shown}"> {jane.sha256}')
    open_pixels(out / CACHE / "train.pixels", Files(out, records), 32, threads=1)
    shown = out / "gallery" / "thumbs" / jane.sha256[:2] / f"{jane.sha256}.jpg"
    shown.parent.mkdir(parents=True)  # of a version before 1.0
    shown.write_bytes(small_jpeg(read_image(out, jane), 192))
    (out / "gallery" / "gallery.json").write_text(jane.source_url)
    (out / "diff.json").write_text(json.dumps({"added": [jane.sha256]}))  # of a version before 1.0
    parts = out / ".parts" / "00000"  # what a killed crawl of 0.2 on a cluster left
    parts.mkdir(parents=True)
    shutil.copy(out / "ledger.jsonl", parts)
    (out / SHARDS).mkdir()
    (out / SHARDS / "codes.npy").write_bytes(jane.sha256.encode())
    (out / "manifest.parquet.tmp-1").write_text(f"{jane.source_url} {JANE}")
    summary = json.loads((out / "summary.json").read_text())
    summary["notes"].append("1 pictures have another size, such as jane.jpg.")
    refused = {"kind": "refused", "reason": "no such image", "count": 1, "first": ["jane.jpg"]}
    counts = {"file": "b.json", "named": 2, "joined": 1, "boxes": 1}
    summary["boxes"] = {**counts, "findings": [refused]}
    (out / "summary.json").write_text(json.dumps(summary))


def opened(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield every file's path and bytes, compressed tables also in the open."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        yield path.relative_to(folder), str(path).encode() + data
        if path.suffix == ".parquet":
            yield path.relative_to(folder), repr(pq.read_table(path).to_pylist()).encode()
        if path.suffix == ".tar":
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                yield path.relative_to(folder), repr(tar.getnames()).encode()


def found(folder: Path, needles: dict[str, bytes]) -> dict[str, set[str]]:
    """Return the files in which each needle is found."""
    where: dict[str, set[str]] = {name: set() for name in needles}
    for path, data in opened(folder):
        for name, needle in needles.items():
            if needle in data:
                where[name].add(path.as_posix())
    return where


@pytest.mark.usefixtures("quick")
def test_nothing_is_left_anywhere(skindx: Skindx, tmp_path: Path) -> None:
    out = tmp_path / "data"
    with LocalSite(pages()) as site:
        build(recipe(site), out)
        url = f"{site.origin}/jane.jpg"
    records = read_manifest(out)
    jane = next(record for record in records if record.source_url == url)
    published = [tmp_path / form for form in FORMATS]
    for folder in published:
        form = PublishSettings(contact="a@b", unaudited=True, format=folder.name)
        publish(out, folder, form)
    leave_traces(out, records, jane)
    (given,) = (published[1] / jane.split / "acne").glob(f"{jane.sha256}.*")
    thumbnail = (out / "gallery" / "thumbs" / jane.sha256[:2] / f"{jane.sha256}.jpg").read_bytes()
    page = (out / LABEL_REVIEW).read_text().partition("base64,")[2].partition('"')[0]
    needles = {
        "sha256": jane.sha256.encode(),
        "url": url.encode(),
        "creator": JANE.encode(),
        "original": (out / jane.path).read_bytes()[-300:-20],
        "published": given.read_bytes()[-300:-20],
        "thumbnail": thumbnail[-300:-20],
        "label page": page[200:500].encode(),
        "name": b"jane.jpg",
    }
    assert base64.b64decode(page)[:2] == b"\xff\xd8"
    before = found(tmp_path, needles)
    assert {name for name, files in before.items() if len(files) < 1} == set()
    # The search itself finds what it should, in each of the places that must be empty later.
    places = {Path(path).parts[0] for path in before["sha256"] | before["creator"]}
    assert places == {"data", *FORMATS}
    tables = {EMBEDDINGS, JOURNAL, TABLE, LABEL_REVIEW, "diff.json", "flags.parquet", "splits.csv"}
    assert {f"data/{name}" for name in tables} <= before["sha256"]
    assert "data/.parts/00000/ledger.jsonl" in before["creator"]

    copies = [part for folder in published for part in ("--published", folder)]
    assert skindx("remove", out, "--url", url, "--only-exact", *copies)[0] == 0

    after = found(tmp_path, needles)
    allowed = {f"data/{name}" for name in MAY_NAME_IT}
    # Its hash may be the name of the group in which /like.jpg stays.
    assert after["sha256"] <= allowed | {"data/splits.csv"}
    assert after["url"] <= allowed
    assert after["name"] <= allowed
    assert {name for name, files in after.items() if files} == {"sha256", "url", "name"}
    assert not (out / CACHE).exists()
    assert not (out / ".parts").exists()
    (like,) = (issue for issue in read_issues(out) if issue.reason == "near-duplicate")
    assert (like.url, like.detail, like.kept_sha256) == (url.replace("jane", "like"), "", "")
    assert read_manifest(out) == [record for record in records if record.sha256 != jane.sha256]


def test_the_same_bytes_at_a_new_address_are_blocked_with_it(tmp_path: Path) -> None:
    out = tmp_path / "data"
    with LocalSite(pages()) as site:
        build(recipe(site), out)
        carry_out(plan([out], urls=[f"{site.origin}/jane.jpg"]))
        site.pages["/new.jpg"] = site.pages["/jane.jpg"]
        site.pages["/w/"] = html(
            *(figure(f"/w{n}.jpg") for n in range(5)), figure("/new.jpg", JANE)
        )
        build(recipe(site), out)
        assert JANE not in (out / "ledger.jsonl").read_text()
        site.asked.clear()
        build(recipe(site), out)
    assert not {"/new.jpg", "/jane.jpg", "/like.jpg"} & set(site.asked)
    reasons = {issue.url.rpartition("/")[2]: issue.reason for issue in read_issues(out)}
    assert reasons == dict.fromkeys(("jane.jpg", "like.jpg", "new.jpg"), "taken-down")


def test_a_table_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data")
    out, url = small.write(), small.records[3].source_url
    planned = plan([out], urls=[url], near=False)
    for name, data in (("a.parquet", b"PAR1"), ("b.csv", b"\xff\xfe\x00"), ("c.jsonl", b"\xff")):
        (out / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} cannot be read"):
            carry_out(planned)
        (out / name).unlink()
    carry_out(planned)
    assert url not in {record.source_url for record in read_manifest(out)}

"""JSON beside images, as gallery-dl and img2dataset write it, and pages of records."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from paint_images import encode, paint

from skindx.core.errors import UserError
from skindx.data.build.build_dataset import build
from skindx.data.manifest import read_issues, read_manifest
from skindx.data.recipe import BuildSettings, load_build_settings
from skindx.data.sources.sidecars import SidecarsSource


def put(path: Path, content: object = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        path.write_bytes(b"\xff\xd8\xff\xe0" + path.name.encode() * 9)
    else:
        path.write_text(json.dumps(content), encoding="utf-8")


def source(path: Path, **settings: Any) -> SidecarsSource:
    return SidecarsSource.parse({"kind": "sidecars", "path": path, **settings})


def gallery(folder: Path) -> Path:
    """Write what gallery-dl writes with --write-metadata."""
    for number, name in enumerate(("Nevus", "Melanoma")):
        for place in range(4):
            file = folder / "wikimediacommons" / f"Category:{name}" / f"{name} ({place}).jpg"
            put(file, None)
            file.write_bytes(encode(paint(number * 100 + place), "JPEG"))
            meta = {
                "extmetadata": {
                    "Artist": {"value": f'<a href="//x">Ann &amp; {place}</a>'},
                    "LicenseShortName": {"value": "CC BY-SA 4.0"},
                },
                "descriptionurl": f"https://commons.wikimedia.org/wiki/File:{name}_{place}.jpg",
                "width": 200,
            }
            put(file.with_name(f"{file.name}.json"), meta)
    put(folder / "wikimediacommons" / "Category:Nevus" / "lone.jpg")
    return folder


def test_gallery_dl_in_nine_lines(tmp_path: Path) -> None:
    gallery(tmp_path / "g")
    (tmp_path / "r.yaml").write_text(
        f"""\
name: commons
urgency: {{melanoma: urgent, nevus: routine}}
sources:
  - kind: sidecars
    path: {tmp_path / "g"}
    labels: {{"Category:Nevus": nevus, "Category:Melanoma": melanoma}}
    columns: {{licence: extmetadata.LicenseShortName.value,
      creator: extmetadata.Artist.value, page: descriptionurl}}
"""
    )
    summary = build(load_build_settings(tmp_path / "r.yaml"), tmp_path / "out")
    records = read_manifest(tmp_path / "out")
    assert {record.label for record in records} == {"nevus", "melanoma"}
    assert len(records) == 8
    assert {record.licence for record in records} == {"CC BY-SA 4.0"}
    assert {record.creator for record in records} == {f"Ann & {n}" for n in range(4)}
    assert all(record.page_url.startswith("https://commons") for record in records)
    (issue,) = read_issues(tmp_path / "out")
    assert (issue.url.rpartition("/")[2], issue.reason) == ("lone.jpg", "no-line")
    assert any("1 image without a JSON file" in note for note in summary.notes)


def test_img2dataset_gives_label_caption_and_address(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / "00000" / f"00000000{number}.jpg")
        meta = {"caption": "a mole", "url": f"https://a.org/{number}", "label": "nevus"}
        put(tmp_path / "00000" / f"00000000{number}.json", meta | {"status": "success"})
        (tmp_path / "00000" / f"00000000{number}.txt").write_text("a mole")
    put(tmp_path / "00000_stats.json", {"count": 3})
    columns = {"label": "label", "page": "url", "caption": "caption"}
    rows = source(tmp_path, columns=columns).gather(tmp_path / "out")
    assert [(row.url, row.label, row.page_url, row.caption, row.status) for row in rows] == [
        (f"00000/00000000{n}.jpg", "nevus", f"https://a.org/{n}", "a mole", "stored")
        for n in range(3)
    ]


def test_pages_of_openverse_and_of_commons(tmp_path: Path) -> None:
    put(tmp_path / "mole" / "1-a.jpg")
    results = [{"id": "1-a", "license_url": "https://x/by/2.0"}, {"id": "2-b", "license_url": ""}]
    put(tmp_path / "mole" / "page_1.json", {"result_count": 2, "results": results})
    columns = {"file": "id", "licence": "license_url"}
    found = source(tmp_path, records="results", columns=columns)
    rows = [(row.url, row.label, row.status) for row in found.gather(tmp_path / "out")]
    assert rows == [("mole/1-a.jpg", "mole", "stored"), ("mole/2-b", "mole", "unreadable")]
    assert any("1 of its lines name files that are not there" in n for n in found.preview().notes)

    put(tmp_path / "c" / "Nevus" / "Nevus_1.jpg")
    page = {"imageinfo": [{"url": "https://upload.wikimedia.org/a/ab/Nevus_1.jpg"}]}
    put(tmp_path / "c" / "Nevus" / "api.json", {"query": {"pages": {"12": page}}})
    columns = {"file": "imageinfo.0.url", "page": "imageinfo.0.url"}
    (row,) = source(tmp_path / "c", records="query.pages", columns=columns).gather(tmp_path / "o")
    assert (row.url, row.label, row.status) == ("Nevus/Nevus_1.jpg", "Nevus", "stored")


def test_what_no_record_says_is_asked(tmp_path: Path) -> None:
    put(tmp_path / "a" / "1.jpg")
    with pytest.raises(UserError, match="has no JSON files beside its images"):
        source(tmp_path).lines()
    put(tmp_path / "a" / "1.json", {"caption": "x"})
    with pytest.raises(UserError, match=r"no JSON file in .* has the key 'label'; .* such as capt"):
        source(tmp_path, columns={"label": "label"}).lines()
    with pytest.raises(UserError, match="has no JSON files with a list of images under"):
        source(tmp_path, records="results", columns={"file": "id"}).lines()
    with pytest.raises(UserError, match="is not a folder"):
        source(tmp_path / "b").lines()


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"a": 1} x', "\x00"])
def test_hostile_json_is_one_sentence(tmp_path: Path, text: str) -> None:
    put(tmp_path / "1.jpg")
    (tmp_path / "1.json").write_text(text)
    with pytest.raises(UserError, match=r"1\.json cannot be read as JSON"):
        source(tmp_path).preview()


def test_nothing_outside_the_folder_is_read(tmp_path: Path) -> None:
    put(tmp_path / "outside.json", {"label": "x"})
    put(tmp_path / "f" / "1.jpg")
    (tmp_path / "f" / "1.json").symlink_to(tmp_path / "outside.json")
    with pytest.raises(UserError, match="it is a link, or no plain file"):
        source(tmp_path / "f").lines()
    (tmp_path / "f" / "1.json").unlink()
    put(tmp_path / "secret.jpg")
    put(tmp_path / "f" / "page.json", {"results": [{"id": "../secret.jpg"}]})
    settings = BuildSettings.parse({"name": "x", "sources": [
        {"kind": "sidecars", "path": tmp_path / "f", "records": "results",
         "columns": {"file": "id"}}]})  # fmt: skip
    (found,) = settings.sources
    assert isinstance(found, SidecarsSource)
    statuses = {row.url: row.status for row in found.gather(tmp_path / "out")}
    assert statuses["../secret.jpg"] == "link-refused"


def shard(path: Path, members: dict[str, bytes], link: str = "") -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo("link.jpg")
            info.type, info.linkname = tarfile.SYMTYPE, link
            archive.addfile(info)


JPEG = b"\xff\xd8\xff\xe0" + b"j" * 99


def test_shards_of_img2dataset_are_read_in_place(tmp_path: Path) -> None:
    for number in range(2):
        meta = json.dumps({"label": "nevus", "url": f"https://a.org/{number}"}).encode()
        members = {"0.jpg": JPEG, "0.json": meta, "0.txt": b"a mole", "1.jpg": JPEG + b"x"}
        shard(tmp_path / f"0000{number}.tar", members, link="/etc/passwd")
    found = source(tmp_path, columns={"label": "label", "page": "url", "caption": "txt"})
    rows = found.gather(tmp_path.parent / "out")
    assert [(row.url, row.label, row.page_url, row.caption, row.status) for row in rows] == [
        one
        for n in range(2)
        for one in (
            (f"0000{n}.tar/0.jpg", "nevus", f"https://a.org/{n}", "a mole", "stored"),
            (f"0000{n}.tar/1.jpg", "", "", "", "no-line"),
        )
    ]
    assert "2 images without a JSON file left out" in " ".join(found.preview().notes)


def test_webdataset_and_folders_give_class_numbers(tmp_path: Path) -> None:
    members = {"a/1.seg.jpg": JPEG, "a/1.cls": b"0\n", "b/1.jpg": JPEG + b"2", "b/1.cls": b"1"}
    shard(tmp_path / "x.tar", members)
    put(tmp_path / "plain" / "7.jpg")
    (tmp_path / "plain" / "7.cls").write_text("1")
    labels = {"0": "nevus", "1": "melanoma"}
    rows = source(tmp_path, columns={"label": "cls"}, labels=labels).gather(tmp_path / "out")
    assert {row.url: (row.label, row.status) for row in rows} == {
        "x.tar/a/1.seg.jpg": ("nevus", "stored"),
        "x.tar/b/1.jpg": ("melanoma", "stored"),
        "plain/7.jpg": ("melanoma", "stored"),
    }


@pytest.mark.parametrize("meta", [b"{", b"\xff\xfe", b"[" * 100_000])
def test_damage_inside_a_shard_is_one_sentence(tmp_path: Path, meta: bytes) -> None:
    shard(tmp_path / "x.tar", {"0.jpg": JPEG, "0.json": meta})
    with pytest.raises(UserError, match=r"x\.tar/0\.json cannot be read"):
        source(tmp_path).preview()
    (tmp_path / "x.tar").write_bytes((tmp_path / "x.tar").read_bytes()[:700])
    with pytest.raises(UserError, match=r"x\.tar cannot be read as an archive|has no JSON files"):
        source(tmp_path).preview()

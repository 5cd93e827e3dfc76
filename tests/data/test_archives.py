"""Images that a recipe reads inside zips and tars, and archives that were made to hurt."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.data.sources.files import FilesSource
from skindx.data.tables import archives

JPEG = b"\xff\xd8\xff\xe0" + b"j" * 99


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarred(members: dict[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def source(folder: Path, files: object, *names: str) -> FilesSource:
    rows = "".join(f"{name},nevus\n" for name in names)
    (folder / "t.csv").write_text(f"file,label\n{rows}")
    raw = {"kind": "files", "path": folder / "t.csv", "files": files, "columns": {"group": ""}}
    return FilesSource.parse(raw)


def found(files: FilesSource) -> dict[str, str]:
    return {row.url: row.status for row in files.gather(files.table.parent / "out")}


def test_zips_of_the_dataverse_are_read_in_place(tmp_path: Path) -> None:
    for part, name in (("1", "a"), ("2", "b")):
        members = {f"{name}.jpg": JPEG + name.encode(), "__MACOSX/._x.jpg": b"x", "d/": b""}
        extra = {"c.jpg": JPEG} if part == "2" else {}
        (tmp_path / f"images_part_{part}.zip").write_bytes(zipped(members | extra))
    files = source(tmp_path, "images_part_*.zip", "a", "b", "gone")
    assert found(files) == {
        "images_part_1.zip/a.jpg": "stored",
        "images_part_2.zip/b.jpg": "stored",
        "gone": "unreadable",
        "images_part_2.zip/c.jpg": "no-line",
    }
    assert not list(tmp_path.glob("images_part_*/"))
    rows = files.gather(tmp_path / "out")
    assert (tmp_path / "out" / rows[0].path).read_bytes() == JPEG + b"a"


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tars_and_archives_in_archives(tmp_path: Path, mode: str) -> None:
    ending = "tar" if mode == "w" else "tar.gz"
    inner = tarred({"./img/a.jpg": JPEG}, mode)
    (tmp_path / "all.zip").write_bytes(zipped({f"deep/part.{ending}": inner}))
    name = f"all.zip/deep/part.{ending}/img/a.jpg"
    assert found(source(tmp_path, f"all.zip/deep/part.{ending}/img/{{}}.jpg", "a")) == {
        name: "stored"
    }
    (tmp_path / f"top.{ending}").write_bytes(inner)
    assert found(source(tmp_path, f"top.{ending}/img/{{}}.jpg", "a")) == {
        f"top.{ending}/img/a.jpg": "stored"
    }


def test_a_member_twice_a_password_and_a_damaged_archive_are_one_sentence(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.jpg", JPEG)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.jpg", JPEG + b"other")
    locked = bytearray(zipped({"a.jpg": JPEG}))
    locked[6] |= 1
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    for data, why in (
        (out.getvalue(), "two different files of the name 'a.jpg'"),
        (bytes(locked), "is protected by a password"),
        (b"PK\x03\x04 no zip", "cannot be read as an archive"),
    ):
        (tmp_path / "x.zip").write_bytes(data)
        with pytest.raises(UserError, match=why):
            source(tmp_path, "x.zip", "a").preview()


def test_damage_inside_is_the_image_s_alone(tmp_path: Path) -> None:
    data = bytearray(zipped({"a.jpg": bytes(range(256)) * 20, "b.jpg": JPEG}))
    data[60] ^= 0xFF
    (tmp_path / "x.zip").write_bytes(bytes(data))
    statuses = found(source(tmp_path, "x.zip/{}.jpg", "a", "b"))
    assert statuses == {"x.zip/a.jpg": "unreadable", "x.zip/b.jpg": "stored"}


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(archives, "_ALWAYS", 1 << 20)
    members = {"a.jpg": JPEG + b"\0" * (8 << 20)}
    data = zipped(members) if name == "x.zip" else tarred(members, "w:gz")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match="unpacks to far more than its size"):
        source(tmp_path, f"{name}/{{}}.jpg", "a").preview()


def test_archives_nested_too_deep_are_refused(tmp_path: Path) -> None:
    data = zipped({"a.jpg": JPEG})
    for _ in range(4):
        data = zipped({"x.zip": data})
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(UserError, match="archives inside archives"):
        source(tmp_path, "x.zip/x.zip/x.zip/x.zip/x.zip/{}.jpg", "a").preview()


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "outside.zip").write_bytes(zipped({"a.jpg": JPEG}))
    inner = tmp_path / "f"
    inner.mkdir()
    (inner / "link.zip").symlink_to(tmp_path / "outside.zip")
    (inner / "x.zip").write_bytes(zipped({"../a.jpg": JPEG}))
    files = source(inner, "{}", "../outside.zip/a.jpg", "link.zip/a.jpg", "x.zip/../a.jpg")
    assert found(files) == {
        "../outside.zip/a.jpg": "link-refused",
        "link.zip/a.jpg": "link-refused",
        "x.zip/../a.jpg": "stored",  # a name in the archive, which is written nowhere
    }

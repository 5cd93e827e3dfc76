"""Images and columns of NPZ and HDF5, tables inside archives, and files that were made to hurt."""

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paint_images import encode, paint
from PIL import Image

from skindx.core.errors import UserError
from skindx.data.sources.files import FilesSource
from skindx.data.tables import arrays
from skindx.data.tables.fields import NeededColumns, TableLog
from skindx.data.tables.reader import read_table

h5py = pytest.importorskip("h5py", reason="h5py is not installed; the extra data has it")
PLAIN = {"group": "", "licence": "", "attribution": "", "skin_type": ""}
PIXELS = np.arange(6 * 5 * 4 * 3, dtype=np.uint8).reshape(6, 5, 4, 3)


def files(path: Path, columns: dict[str, Any], **settings: Any) -> FilesSource:
    return FilesSource.parse(
        {"kind": "files", "path": path, "columns": PLAIN | columns, **settings}
    )


def rows_of(path: Path) -> list[dict[str, Any]]:
    return list(read_table(path, NeededColumns(), every=True))


def npz(path: Path, **named: Any) -> Path:
    np.savez_compressed(path, **named)
    return path


def test_an_npz_of_pixels_by_split(tmp_path: Path) -> None:
    path = npz(
        tmp_path / "derma.npz",
        train_images=PIXELS[:4], train_labels=np.array([[0], [1], [1], [0]], np.uint8),
        test_images=PIXELS[4:], test_labels=np.array([[1], [0]], np.uint8),
    )  # fmt: skip
    source = files(
        path, {"file": "images", "label": "labels", "split": "split"},
        labels={"0": "nevus", "1": "melanoma"},
    )  # fmt: skip
    rows = source.gather(tmp_path / "out")
    assert [(row.label, row.split) for row in rows] == [
        *(("nevus", "train"), ("melanoma", "train"), ("melanoma", "train"), ("nevus", "train")),
        *(("melanoma", "test"), ("nevus", "test")),
    ]
    assert [row.url for row in rows][3:5] == [
        f"derma.npz/{at}" for at in ("train_images/3", "test_images/0")
    ]
    with Image.open(tmp_path / "out" / rows[4].path) as image:
        assert np.array_equal(np.asarray(image), PIXELS[4])


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4, 5, 1), (3, 1, 4, 5), (3, 3, 4, 5)])
@pytest.mark.parametrize("ending", ["npz", "h5"])
def test_grey_images_and_channels_first(
    tmp_path: Path, shape: tuple[int, ...], ending: str
) -> None:
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    path = tmp_path / f"x.{ending}"
    if ending == "npz":
        npz(path, X=pixels, y=np.array(["a", "b", "b"]))
    else:
        with h5py.File(path, "w") as store:
            store["X"], store["y"] = pixels, [b"a", b"b", b"b"]
    rows = files(path, {"file": "X", "label": "y"}).gather(tmp_path / "out")
    assert [row.label for row in rows] == ["a", "b", "b"]
    with Image.open(tmp_path / "out" / rows[1].path) as image:
        found = np.asarray(image)
    wanted = np.moveaxis(pixels[1], 0, 2) if shape[1] in (1, 3) and len(shape) == 4 else pixels[1]
    assert np.array_equal(found, wanted.reshape(found.shape))


def test_pickles_are_never_loaded_and_other_lengths_are_named(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", images=PIXELS, labels=np.array([{}] * 6), names=np.arange(2))
    with pytest.raises(UserError, match=r"no column 'labels'; set `columns\.label`"):
        files(path, {"file": "images", "label": "labels"}).lines()
    log = TableLog()
    assert len(list(read_table(path, NeededColumns(), None, log, every=True))) == 6
    assert "'names' has 2 rows and not 6: left out" in log.notes[0]


def test_an_npz_that_unpacks_without_end_or_lies_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = npz(tmp_path / "x.npz", images=np.zeros((40, 100, 100, 3), np.uint8))
    monkeypatch.setattr(arrays, "_ALWAYS", 1 << 20)
    with pytest.raises(UserError, match="unpacks to far more than its size"):
        rows_of(path)
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 4, 4)}
    )
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
        archive.writestr("images.npy", head.getvalue())
    with pytest.raises(UserError, match="has another length than it says"):
        rows_of(tmp_path / "y.npz")
    for data in (b"PK", b"\x89HDF\r\n\x1a\n" + b"x" * 99, b""):
        for name in ("z.npz", "z.h5"):
            (tmp_path / name).write_bytes(data)
            with pytest.raises(UserError, match=r"z\.\w+ cannot be read as a table"):
                rows_of(tmp_path / name)


def test_isic_2024_reads_one_encoded_image_a_key(tmp_path: Path) -> None:
    (tmp_path / "meta.csv").write_text("isic_id,target\nISIC_1,0\nISIC_2,1\nISIC_9,1\n")
    data = [encode(paint(number), "JPEG") for number in range(3)]
    with h5py.File(tmp_path / "train-image.hdf5", "w") as store:
        store.create_dataset("ISIC_1", data=np.void(data[0]))
        store.create_dataset("ISIC_2", data=np.frombuffer(data[1], np.uint8))
        store.create_dataset("ISIC_3", data=np.void(data[2]))
    source = files(
        tmp_path / "meta.csv", {"file": "isic_id", "label": "target"}, files="train-image.hdf5"
    )
    rows = {row.url: row for row in source.gather(tmp_path / "out")}
    assert {url: (row.label, row.status) for url, row in rows.items()} == {
        "train-image.hdf5/ISIC_1": ("0", "stored"),
        "train-image.hdf5/ISIC_2": ("1", "stored"),
        "ISIC_9": ("1", "unreadable"),
        "train-image.hdf5/ISIC_3": ("", "no-line"),
    }
    stored = tmp_path / "out" / rows["train-image.hdf5/ISIC_1"].path
    assert stored.read_bytes() == data[0]


def test_columns_of_hdf5_and_of_a_structured_array(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as store:
        store["train/label"] = ["nevus", "melanoma"]
        store["train/age"] = [30.0, np.nan]
        store["test/label"], store["test/age"] = ["nevus"], [50.0]
    assert rows_of(tmp_path / "a.h5")[::2] == [
        {"age": 50.0, "label": "nevus", "split": "test"},
        {"age": pytest.approx(np.nan, nan_ok=True), "label": "melanoma", "split": "train"},
    ]
    table = np.array([(1, b"a"), (2, b"b")], [("id", "i4"), ("label", "S3")])
    with h5py.File(tmp_path / "b.h5", "w") as store:
        store["table"] = table
    assert rows_of(tmp_path / "b.h5") == [{"id": 1, "label": "a"}, {"id": 2, "label": "b"}]


def test_nothing_outside_an_hdf5_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as store:
        store["x"] = np.frombuffer(encode(paint(1), "JPEG"), np.uint8)
    (tmp_path / "secret.bin").write_bytes(encode(paint(2), "JPEG"))
    size = (tmp_path / "secret.bin").stat().st_size
    (tmp_path / "t").mkdir()
    with h5py.File(tmp_path / "t" / "a.h5", "w") as store:
        store["link"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/x")
        store["soft"] = h5py.SoftLink("/external")
        external = [(str(tmp_path / "secret.bin"), 0, size)]
        store.create_dataset("external", (size,), np.uint8, external=external)
        layout = h5py.VirtualLayout((9,), np.uint8)
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "x", (9,))
        store.create_virtual_dataset("virtual", layout)
    for name in ("link", "soft", "external", "virtual", "../t"):
        (tmp_path / "t" / "meta.csv").write_text(f"file,label\n{name},a\n")
        source = files(tmp_path / "t" / "meta.csv", {}, files="a.h5/{}")
        assert source.gather(tmp_path / "out")[0].status != "stored"


def test_without_h5py_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.h5").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match="HDF5 is read with h5py, which is not installed; run "):
        rows_of(tmp_path / "a.h5")


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("below", ["", "set/"])
def test_one_zip_of_table_and_images(tmp_path: Path, below: str) -> None:
    members = {f"{below}images/{n}.jpg": encode(paint(n), "JPEG") for n in range(3)}
    members |= {f"{below}metadata.csv": b"isic_id,label\n0,nevus\n1,nevus\n7,nevus\n"}
    path = zipped(tmp_path / "all.zip", members)
    table = path / f"{below}metadata.csv"
    source = files(table, {"file": "isic_id"}, files="images")
    assert {row.url: row.status for row in source.gather(tmp_path / "out")} == {
        f"all.zip/{below}images/0.jpg": "stored",
        f"all.zip/{below}images/1.jpg": "stored",
        "7": "unreadable",
        f"all.zip/{below}images/2.jpg": "no-line",
    }
    other = FilesSource.parse({**source.model_dump(), "path": "x.csv", "or_paths": [table]})
    assert other.table == table
    (again,) = {row.url for row in other.gather(tmp_path / "out") if row.status == "unreadable"}
    assert again == "7"


def test_tables_of_any_kind_in_any_archive_and_what_is_not_there(tmp_path: Path) -> None:
    outer = {"d.npz": npz(tmp_path / "d.npz", images=PIXELS, labels=np.arange(6)).read_bytes()}
    outer |= {"t.jsonl": b'{"label": "a"}\n', "bad.csv": b'label\n"a\n'}
    path = zipped(tmp_path / "o.zip", {"i.zip": zipped(tmp_path / "i.zip", outer).read_bytes()})
    assert rows_of(path / "i.zip" / "t.jsonl") == [{"label": "a"}]
    rows = files(path / "i.zip" / "d.npz", {"file": "images", "label": "labels"}).gather(
        tmp_path / "out"
    )
    assert [row.status for row in rows] == ["stored"] * 6
    assert rows[5].url == "o.zip/i.zip/d.npz/images/5"
    for name, why in (("no.csv", "does not exist"), ("bad.csv", "cannot be read as a table")):
        with pytest.raises(UserError, match=f"o.zip/i.zip/{name} {why}"):
            rows_of(path / "i.zip" / name)
    (tmp_path / "x.zip").write_bytes(b"PK no zip")
    with pytest.raises(UserError, match="cannot be read as an archive"):
        rows_of(tmp_path / "x.zip" / "t.csv")

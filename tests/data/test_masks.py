"""PNG masks as a source of boxes."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.boxes.box_formats import BoxSource, format_of, read_boxes, read_masks
from skindx.data.boxes.box_join import DatasetImage, join


def save(file: Path, mask_HW: np.ndarray, mode: str = "1") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask_HW.astype(np.uint8) * 255).convert(mode).save(file)


def marked(size: tuple[int, int], *boxes: tuple[int, int, int, int]) -> np.ndarray:
    mask_HW = np.zeros((size[1], size[0]), bool)
    for x1, y1, x2, y2 in boxes:
        mask_HW[y1:y2, x1:x2] = True
    return mask_HW


def test_one_box_holds_all_pieces_of_a_mask(tmp_path: Path) -> None:
    save(tmp_path / "a.png", marked((40, 30), (3, 4, 9, 8), (20, 5, 31, 12)))
    save(tmp_path / "b_segmentation.png", marked((40, 30), (0, 0, 40, 29)), "L")
    read = read_boxes(BoxSource(path=tmp_path))
    assert format_of(tmp_path) == "masks"
    assert read["a"].boxes == (Box(3, 4, 31, 12, drawn_by=tmp_path.name),)
    assert (read["b"].width, read["b"].height) == (40, 30)
    (finding,) = read.all_findings()
    assert finding.kind == "uncertain"
    assert "covers more than 90%" in finding.line()
    with pytest.raises(UserError, match="more than 90%"):
        read_boxes(BoxSource(path=tmp_path, strict=True))


@given(st.data())
def test_the_box_is_the_smallest_around_the_mask(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    bits = data.draw(st.lists(st.booleans(), min_size=35, max_size=35).filter(any))
    mask_HW = np.array(bits).reshape(5, 7)
    folder = tmp_path_factory.mktemp("masks")
    save(folder / "x.png", mask_HW)
    (box,) = read_masks(folder)["x"].boxes
    x1, y1, x2, y2 = map(int, (box.x1, box.y1, box.x2, box.y2))
    assert mask_HW[y1:y2, x1:x2].sum() == mask_HW.sum()
    assert mask_HW[y1].any()
    assert mask_HW[y2 - 1].any()
    assert mask_HW[:, x1].any()
    assert mask_HW[:, x2 - 1].any()


def test_what_gives_no_box_is_counted_and_named(tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    save(masks / "good.png", marked((20, 20), (2, 2, 9, 9)))
    save(masks / "other-size.png", marked((10, 20), (2, 2, 9, 9)))
    save(masks / "nobody.png", marked((20, 20), (2, 2, 9, 9)))
    save(masks / "empty.png", marked((20, 20)))
    (masks / "broken.png").write_bytes((masks / "good.png").read_bytes()[:50])
    save(masks / "twice.png", marked((20, 20), (2, 2, 9, 9)))
    save(masks / "twice_mask.png", marked((20, 20), (2, 2, 9, 9)))
    Image.fromarray(np.arange(400, dtype=np.uint8).reshape(20, 20)).save(masks / "photo.png")
    save(tmp_path / "outside.png", marked((20, 20), (2, 2, 9, 9)))
    (masks / "link.png").symlink_to(tmp_path / "outside.png")
    read = read_masks(masks)
    names = ("good", "other-size", "empty", "broken", "twice", "photo", "link")
    images = {name: DatasetImage((20, 20), tmp_path / f"{name}.jpg") for name in names}
    joined = join(read, images, [(name, f"images/{name}.jpg") for name in names], cut=True)
    assert [each.sha256 for each in joined.entries] == ["good"]
    lines = " ".join(finding.line() for finding in joined.all_findings())
    for reason in (
        "the dataset has the image in another size, such as other-size",
        "the dataset has no such image, such as nobody",
        "the mask is empty, which does not say that there is no lesion, such as empty.png",
        "the mask cannot be read, such as broken.png",
        "names this image more than once, such as twice",
        "more than two grey levels, so it is no mask, such as photo.png",
        "a link out of the folder, such as link.png",
    ):
        assert reason in lines
    negative = read_boxes(BoxSource(path=masks, kind="masks", unannotated="negative"))
    assert negative["empty"].boxes == ()


def test_bad_settings_and_folders_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder"):
        read_masks(tmp_path / "none")
    with pytest.raises(UserError, match="holds no PNG"):
        read_masks(tmp_path)
    save(tmp_path / "a.png", marked((20, 20)))
    with pytest.raises(UserError, match=r"no box in .* can be used: the mask is empty"):
        read_boxes(BoxSource(path=tmp_path))
    with pytest.raises(UserError, match="does not fit the pattern"):
        read_boxes(BoxSource(path=tmp_path, kind="masks", pattern=r"^(\d+)\.png$"))
    with pytest.raises(UserError, match="pair of brackets"):
        BoxSource.load(None, start={"path": tmp_path, "pattern": "x"})
    with pytest.raises(UserError, match=r"does not apply to the format coco"):
        read_boxes(BoxSource(path=tmp_path, kind="coco", pattern="(x)"))


def test_boxes_of_ham10000_are_those_of_its_table(real: Path, tmp_path: Path) -> None:
    with (real / "ham10000" / "index.csv").open() as file:
        rows = list(csv.DictReader(file))[::100]
    for row in rows:
        mask = real / "ham10000" / "masks" / f"{row['image']}.png"
        shutil.copy(mask, tmp_path)
    read = read_masks(tmp_path)
    assert len(read) == len(rows)
    for row in rows:
        (box,) = read[row["image"]].boxes
        table = [float(row[f"box_{edge}"]) for edge in ("x0", "y0", "x1", "y1")]
        assert [box.x1, box.y1, box.x2, box.y2] == table

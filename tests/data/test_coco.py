import json
from pathlib import Path
from typing import Any

import pytest

from skindx.core.errors import UserError
from skindx.data.box import Box, BoxedImage
from skindx.data.boxes.box_file import BoxRules
from skindx.data.boxes.coco import read_coco


def coco(**changes: Any) -> dict[str, Any]:
    return {
        "images": [
            {"id": 1, "file_name": "acne/a.jpg", "width": 100, "height": 80},
            {"id": 2, "file_name": "b.jpg", "width": 50, "height": 50},
        ],
        "categories": [{"id": 7, "name": "lesion"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 7, "bbox": [10, 20.5, 30, 40]},
            {"id": 2, "image_id": 1, "category_id": 7, "bbox": [90, -5, 30, 40]},
            {"id": 3, "image_id": 1, "category_id": 7, "bbox": [100, 0, 5, 5]},
        ],
        **changes,
    }


def written(tmp_path: Path, value: Any) -> Path:
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps(value))
    return path


def test_boxes_are_joined_cut_and_empty_images_stay(tmp_path: Path) -> None:
    first = Box(10, 20.5, 40, 60.5, "lesion", "boxes.json")
    second = Box(90, 0, 100, 35, "lesion", "boxes.json")
    path = written(tmp_path, coco())
    assert read_coco(path, BoxRules(unannotated="negative")).images == {
        "acne/a.jpg": BoxedImage(100, 80, (first, second)),
        "b.jpg": BoxedImage(50, 50, ()),
    }
    file = read_coco(path)
    assert list(file.images) == ["acne/a.jpg"]
    assert [found.first for found in file.waiting.list()] == [("b.jpg",)]


@pytest.mark.parametrize(
    ("value", "said"), [([], "is not a COCO file"), ({"images": []}, "annotations")]
)
def test_what_is_no_coco_is_one_sentence(tmp_path: Path, value: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_coco(written(tmp_path, value))


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_coco(tmp_path / "no.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        read_coco(tmp_path / "bad.json")

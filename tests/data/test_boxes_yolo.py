import dataclasses
from pathlib import Path

import pytest
import yaml

from skindx.data.boxes import Box
from skindx.data.manifest import Record, read_manifest
from skindx.training.yolo_layout import box_labels, write_yolo_layout


def test_boxes_become_relative_centres(small_dataset: Path, tmp_path: Path) -> None:
    records = read_manifest(small_dataset)
    record = dataclasses.replace(
        records[0], split="train", boxes=(Box(24, 18, 72, 54, "mole"), Box(0, 0, 48, 72, "scar"))
    )
    empty = dataclasses.replace(records[1], split="train", boxes=())
    unseen = dataclasses.replace(records[2], split="train", boxes=None)
    other = dataclasses.replace(records[3], split="test")
    chosen = [record, empty, unseen, other]
    labels = box_labels([record, empty])
    assert labels == ("mole", "scar")
    data = yaml.safe_load(write_yolo_layout(tmp_path, small_dataset, chosen, labels).read_text())
    assert data["names"] == ["mole", "scar"]

    def text(each: Record) -> str:
        return (tmp_path / "labels" / "train" / f"{Path(each.path).stem}.txt").read_text()

    rows = [[float(number) for number in line.split()] for line in text(record).splitlines()]
    assert rows[0] == pytest.approx([0, 0.5, 0.5, 0.5, 0.5])
    assert rows[1] == pytest.approx([1, 0.25, 0.5, 0.5, 1.0])
    assert text(empty) == ""
    pictures = {file.name for file in (tmp_path / "images").rglob("*.png")}
    assert pictures == {Path(record.path).name, Path(empty.path).name}

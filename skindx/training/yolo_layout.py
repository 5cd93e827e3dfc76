"""The folder layout that ultralytics reads, generated from a manifest."""

import json
from collections.abc import Sequence
from pathlib import Path

from skindx.data.manifest import Record, Split, split_of


def box_labels(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the sorted classes of the boxes that the records carry."""
    return tuple(sorted({box.label for record in records for box in record.boxes or ()}))


def write_yolo_layout(
    folder: Path, dataset: Path, records: Sequence[Record], labels: Sequence[str]
) -> Path:
    """Write images/, labels/ and data.yaml for the train and val records that were annotated.

    Pictures are links into the store; a picture without a lesion gets an empty label file.
    Returns the path of data.yaml.
    """
    splits: tuple[Split, ...] = ("train", "val")
    for split in splits:
        (folder / "images" / split).mkdir(parents=True)
        (folder / "labels" / split).mkdir(parents=True)
        for record in split_of(records, split):
            if record.boxes is None:
                continue
            source = (dataset / record.path).resolve()
            (folder / "images" / split / source.name).symlink_to(source)
            lines = [
                f"{labels.index(box.label)} "
                f"{(box.x1 + box.x2) / 2 / record.width:.6f} "
                f"{(box.y1 + box.y2) / 2 / record.height:.6f} "
                f"{(box.x2 - box.x1) / record.width:.6f} "
                f"{(box.y2 - box.y1) / record.height:.6f}\n"
                for box in record.boxes
            ]
            (folder / "labels" / split / f"{source.stem}.txt").write_text("".join(lines))
    data = folder / "data.yaml"
    names = json.dumps(list(labels))
    data.write_text(
        f"path: {json.dumps(str(folder))}\ntrain: images/train\nval: images/val\nnames: {names}\n"
    )
    return data

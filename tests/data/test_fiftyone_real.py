"""A real FiftyOne opens what we write, and we read what it writes.

It stays out of our environment, whose packages it would change. `SKINDX_FIFTYONE` is the Python
of another one: `python -m venv fo; fo/bin/pip install fiftyone; SKINDX_FIFTYONE=fo/bin/python`.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from test_box_orientations import assert_back, photos  # noqa: F401 (a fixture)

from skindx.data.box import Box
from skindx.data.boxes.box_exchange import export_boxes, import_boxes
from skindx.data.boxes.fiftyone import write_labels
from skindx.data.manifest import Record, read_manifest, write_manifest
from skindx.data.sources.folder import FolderSource

PYTHON = os.environ.get("SKINDX_FIFTYONE", "")
SCRIPT = """
import json, sys
import fiftyone as fo
boxes, classes, out = sys.argv[1:]
drawn, named = fo.types.FiftyOneImageDetectionDataset, fo.types.FiftyOneImageClassificationDataset
opened = fo.Dataset.from_dir(boxes, drawn)
opened.compute_metadata()
opened.export(out + '/boxes', drawn, label_field='ground_truth')
rows = {}
for sample in opened:
    size = sample.metadata.width, sample.metadata.height
    rows[sample.filepath] = [size, [box.label for box in sample.ground_truth.detections]]
labelled = fo.Dataset.from_dir(classes, named)
labelled.export(out + '/classes', named, label_field='ground_truth')
print(json.dumps([rows, {s.filepath: s.ground_truth.label for s in labelled}]))
"""


@pytest.mark.skipif(not PYTHON, reason="SKINDX_FIFTYONE names no Python that has fiftyone")
def test_fiftyone_opens_ours_and_we_open_its(
    photos: tuple[Path, list[Record]],  # noqa: F811
    tmp_path: Path,
) -> None:
    dataset, records = photos
    boxes = [
        (Box(r.width / 8, 0, r.width / 2, r.height / 4, f"cläss {n % 2}"),) * (n != 3)
        for n, r in enumerate(records)
    ]
    write_manifest(dataset, [replace(r, boxes=b) for r, b in zip(records, boxes, strict=True)])
    export_boxes(dataset, tmp_path / "boxes", "fiftyone", copy=True)
    write_manifest(dataset, records)
    labels = {Path(r.path).name: n % 2 for n, r in enumerate(records)}
    (tmp_path / "classes").mkdir()
    (tmp_path / "classes" / "data").symlink_to(tmp_path / "boxes" / "data")
    write_labels(tmp_path / "classes" / "labels.json", ["mole", "scar"], labels)
    done = subprocess.run(
        [PYTHON, "-c", SCRIPT, tmp_path / "boxes", tmp_path / "classes", tmp_path / "out"],
        env={
            **{name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
            "FIFTYONE_DATABASE_DIR": str(tmp_path / "db"),
            "FIFTYONE_DO_NOT_TRACK": "true",
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read, classes = json.loads(done.stdout.splitlines()[-1])
    assert len(read) == len(classes) == 8
    for path, ((width, height), detections) in read.items():
        sha256 = Path(path).stem
        (record,) = (r for r in records if r.sha256 == sha256)
        assert (width, height) == (record.width, record.height)  # as EXIF turns the photo
        assert detections == [box.label for box in boxes[records.index(record)]]
    assert {Path(path).name: ["mole", "scar"].index(c) for path, c in classes.items()} == labels

    import_boxes(dataset, tmp_path / "out" / "boxes", by="Ann")
    assert_back(dataset, boxes)
    write_manifest(dataset, records)
    rows = FolderSource(path=tmp_path / "out" / "classes", layout="fiftyone").gather(tmp_path / "g")
    assert {Path(row.url).name: ["mole", "scar"].index(row.label) for row in rows} == labels
    assert len(read_manifest(dataset)) == 8

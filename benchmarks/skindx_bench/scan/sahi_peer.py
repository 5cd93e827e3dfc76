"""SAHI over the same photos: run in the peer's environment, jobs in and boxes out as JSON.

The first line is {bundle folder of the detector, its spec, tile, overlap, confidence}; each later
line is the path of a photo, answered by {seconds, boxes: x1, y1, x2, y2, score}.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def load(job: dict[str, Any]) -> Any:
    """Return SAHI's model with our detector's weights."""
    import torch
    from sahi import AutoDetectionModel
    from ultralytics import YOLO

    from skindx.models.detector import DetectorSpec, load_detector

    torch.set_num_threads(int(job["threads"]))
    spec = DetectorSpec.parse(job["spec"])
    detector = load_detector(Path(job["detector"]), spec)
    yolo = YOLO("yolov8n.yaml", task="detect")
    net: Any = detector.net
    net.names = dict(enumerate(spec.labels))
    net.args = yolo.model.args
    yolo.model = net
    return AutoDetectionModel.from_pretrained(
        model_type="ultralytics",
        model=yolo,
        confidence_threshold=job["confidence"],
        device="cpu",
        image_size=job["tile"],
    )


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from sahi.predict import get_sliced_prediction

    job = json.loads(sys.stdin.readline())
    model = load(job)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        result = get_sliced_prediction(
            json.loads(line),
            model,
            slice_height=job["tile"],
            slice_width=job["tile"],
            overlap_height_ratio=job["overlap"],
            overlap_width_ratio=job["overlap"],
            verbose=0,
        )
        seconds = time.perf_counter() - started
        boxes = [
            [*map(float, found.bbox.to_xyxy()), float(found.score.value)]
            for found in result.object_prediction_list
        ]
        print(json.dumps({"seconds": seconds, "boxes": boxes}), file=answers, flush=True)


if __name__ == "__main__":
    main()

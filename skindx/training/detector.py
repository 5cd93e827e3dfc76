"""Train the lesion detector on a manifest's boxes, with ultralytics' own trainer.

`python -m skindx.training.detector RUN DATASET MARK`: a process of its own, since ultralytics sets
global state. The YOLO layout is generated from the manifest and thrown away.
"""

import json
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from skindx.config import read_yaml
from skindx.data.boxes.exporting import box_labels, pictures_of
from skindx.data.boxes.yolo import write_yolo
from skindx.data.manifest import MANIFEST, Split, read_manifest, split_of
from skindx.errors import UserError
from skindx.files import atomic_file, atomic_folder, sha256_file, write_json
from skindx.models.bundle import DetectorParts
from skindx.models.detector import MODEL_WEIGHTS, MODEL_YAML, DetectorSpec, save_detector
from skindx.offline import go_offline
from skindx.training.bar import TrainingBar
from skindx.training.member import fingerprint_of, matches
from skindx.training.memory import keep_freed_memory
from skindx.training.settings import DetectorSettings, TrainSettings
from skindx.training.worker import SETTINGS

FOLDER = "detector"

_REPORTERS = ("sync", "clearml", "comet", "dvc", "mlflow", "raytune", "tensorboard", "wandb")

# Where a picture shows one or two lesions, ultralytics' street-scene defaults slow learning down:
# on the synthetic atlas YOLO11n with the defaults reached mAP50 0.51 in nine epochs, YOLOv8n with
# these 0.96 in eight.
_FOR_LESIONS = {
    "optimizer": "AdamW",
    "cos_lr": True,
    "mosaic": 0.0,
    "translate": 0.05,
    "scale": 0.2,
    "flipud": 0.5,  # skin has no upright
    "cls": 1.0,
}


def train_detector(
    settings: DetectorSettings, data_yaml: Path, work: Path, labels: tuple[str, ...], device: str
) -> tuple[DetectorParts, list[dict[str, float | bool]]]:
    """Train and return the detector's parts, and one row an epoch (seconds, mAP50)."""
    go_offline()
    from ultralytics import YOLO
    from ultralytics import settings as ultralytics_settings

    _provide_font()
    # No usage statistics, and no reports to whatever tracker happens to be installed.
    ultralytics_settings.update(dict.fromkeys(_REPORTERS, False))
    started = time.monotonic()
    history: list[dict[str, float | bool]] = []
    model = YOLO(settings.model, task="detect")
    pictures = len(list((data_yaml.parent / "images" / "train").iterdir()))
    steps = settings.epochs * math.ceil(pictures / settings.batch)
    bar = TrainingBar("detector", steps, shown=True, batch=settings.batch)

    def after_epoch(trainer: Any) -> None:
        if history and history[-1]["last"]:
            return  # ultralytics calls once more when it has scored its best weights
        map50 = float(trainer.metrics.get("metrics/mAP50(B)", 0.0))
        seconds = time.monotonic() - started
        trainer.stop |= map50 >= settings.stop_map50 or seconds >= settings.limit_s
        history.append(
            {
                "epoch": len(history) + 1,
                "seconds": round(seconds, 1),
                "map50": round(map50, 4),
                "last": bool(trainer.stop),
            }
        )
        bar.line(f"epoch {len(history):>3}  val mAP50 {map50:.3f}")

    def after_batch(trainer: Any) -> None:
        bar.step(trainer.loss.item() / settings.batch)

    model.add_callback("on_train_batch_end", after_batch)
    model.add_callback("on_fit_epoch_end", after_epoch)
    with bar:
        model.train(
            **_FOR_LESIONS,
            lr0=settings.learning_rate,
            data=str(data_yaml),
            epochs=settings.epochs,
            imgsz=settings.size,
            batch=settings.batch,
            seed=settings.seed,
            device=device,
            project=str(work),
            name="yolo",
            pretrained=False,
            plots=False,
            workers=0,
            amp=False,
            verbose=False,
        )
    trained = model.trainer.ema.ema
    spec = DetectorSpec(size=settings.size, labels=labels)
    config = {**trained.yaml, "nc": len(labels)}
    return DetectorParts(spec, config, trained.float().state_dict()), history


def detector_fingerprint(settings: TrainSettings, dataset: Path) -> str:
    """Return a hash of everything that decides the detector's weights."""
    assert settings.detector is not None
    return fingerprint_of(
        {
            "detector": settings.detector.model_dump(mode="json"),
            "augmentation": _FOR_LESIONS,
            "manifest": sha256_file(dataset / MANIFEST),
        }
    )


def is_trained(run: Path, expected: str) -> bool:
    """True when RUN/detector is there. Raises UserError when other settings or data made it."""
    return matches(run / FOLDER / "detector.json", expected)


def _provide_font() -> None:
    """Put a font where ultralytics looks for Arial, which it would else fetch from the network."""
    from matplotlib import get_data_path
    from ultralytics.utils import USER_CONFIG_DIR

    source = Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    for name in ("Arial.ttf", "Arial.Unicode.ttf"):
        target = Path(USER_CONFIG_DIR) / name
        if not target.exists():
            with atomic_file(target) as temporary:
                shutil.copyfile(source, temporary)


def run_detector(run: Path, dataset: Path, mark: str) -> None:
    """Train the run's detector and write RUN/detector in one step."""
    settings = TrainSettings.load(run / SETTINGS)
    assert settings.detector is not None
    records = read_manifest(dataset)
    labels = box_labels(records)
    splits: tuple[Split, ...] = ("train", "val")
    pictures = [(split, pictures_of(split_of(records, split))) for split in splits]
    files = {Path(record.path).name: dataset / record.path for record in records}
    device = "0" if settings.engine.accelerator != "cpu" and torch.cuda.is_available() else "cpu"
    if device == "cpu":
        keep_freed_memory()
    work = Path(tempfile.mkdtemp(prefix="skindx-detector-"))
    try:
        data_yaml = write_yolo(work / "data", pictures, files, labels)
        parts, history = train_detector(settings.detector, data_yaml, work, labels, device)
    finally:
        shutil.rmtree(work)
    with atomic_folder(run / FOLDER) as folder:
        save_detector(folder, parts.config, parts.state)
        write_json(
            folder / "detector.json",
            {"fingerprint": mark, "spec": parts.spec.model_dump(mode="json"), "history": history},
        )


def load_parts(run: Path) -> DetectorParts:
    """Read what `run_detector` wrote."""
    from safetensors.torch import load_file

    folder = run / FOLDER
    spec = DetectorSpec.parse(json.loads((folder / "detector.json").read_text())["spec"])
    config, state = read_yaml(folder / MODEL_YAML), load_file(folder / MODEL_WEIGHTS)
    return DetectorParts(spec, config, state)


def main(arguments: list[str]) -> int:
    """Train the detector of a run; return the exit code."""
    run, dataset, mark = arguments
    try:
        run_detector(Path(run), Path(dataset), mark)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

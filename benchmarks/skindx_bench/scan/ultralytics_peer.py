"""ultralytics' own trainer on a manifest's boxes: what our detector's training is measured beside.

`python -m skindx_bench.scan.ultralytics_peer RUN DATASET`: a separate process, since
ultralytics sets global state. The YOLO layout is generated from the manifest and thrown away.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import atomic_file
from skindx.core.machine import go_offline
from skindx.data.boxes.box_exchange import box_labels, images_of
from skindx.data.boxes.yolo import write_yolo
from skindx.data.manifest import Split, read_manifest, split_of
from skindx.models.bundle.bundle import DetectorParts
from skindx.models.detector import DetectorSpec
from skindx.training.checkpoint.finished import save_parts
from skindx.training.config.ensemble import DetectorSettings
from skindx.training.config.run import TrainSettings
from skindx.training.tasks.detector_task import CLASS_GAIN

_REPORTERS = ("sync", "clearml", "comet", "dvc", "mlflow", "raytune", "tensorboard", "wandb")


def train(settings: DetectorSettings, data_yaml: Path, work: Path) -> Any:
    """Train by ultralytics and return its averaged model.

    It gets the same model, size, batch, rate, epochs and strength of changes; an update a step
    (`nbs`) as ours, and of its own what else belongs to its recipe.
    """
    go_offline()
    from ultralytics import YOLO
    from ultralytics import settings as ultralytics_settings

    _provide_font()
    # No usage statistics, and no reports to whatever tracker happens to be installed.
    ultralytics_settings.update(dict.fromkeys(_REPORTERS, False))
    model, augment = YOLO(settings.model, task="detect"), settings.augment
    model.train(
        data=str(data_yaml),
        epochs=settings.epochs,
        imgsz=settings.size,
        batch=settings.batch,
        nbs=settings.batch,
        seed=settings.seed,
        optimizer="AdamW",
        lr0=settings.learning_rate,
        weight_decay=settings.weight_decay,
        cos_lr=True,
        cls=CLASS_GAIN,
        mosaic=0.0,
        flipud=0.5 if augment.flip else 0.0,
        fliplr=0.5 if augment.flip else 0.0,
        scale=augment.scale,
        translate=augment.translate,
        hsv_h=augment.hue,
        hsv_s=augment.saturation,
        hsv_v=augment.brightness,
        device="cpu",
        project=str(work),
        name="yolo",
        pretrained=False,
        plots=False,
        workers=0,
        amp=False,
        verbose=False,
    )
    return model.trainer.ema.ema.float()


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


def main(arguments: list[str]) -> int:
    """Train RUN/detector by RUN/train.yaml; return the exit code."""
    run, dataset = (Path(argument) for argument in arguments)
    settings = TrainSettings.load(run / "train.yaml").detector
    assert settings is not None
    records = read_manifest(dataset)
    labels = box_labels(records)
    splits: tuple[Split, ...] = ("train", "val")
    images = [(split, images_of(split_of(records, split))) for split in splits]
    files = {Path(record.path).name: dataset / record.path for record in records}
    with tempfile.TemporaryDirectory(prefix="skindx-peer-") as name:
        data_yaml = write_yolo(Path(name) / "data", images, files, labels)
        net = train(settings, data_yaml, Path(name))
    spec = DetectorSpec(size=settings.size, labels=labels)
    parts = DetectorParts(spec, {**net.yaml, "nc": len(labels)}, net.state_dict())
    save_parts(run, dataset, parts, [{"epoch": settings.epochs}], "peer")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

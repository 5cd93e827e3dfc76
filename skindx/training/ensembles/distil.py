"""A single student that learns from the whole ensemble (Hinton et al. 2015), for CPU serving.

The teacher predicts each training image once, on the central square and in its own views,
and not each crop of each epoch: the same crop for both teaches somewhat better (Beyer et
al. 2022), but makes every step of a small network as dear as a step of all large ones. Crops and
mixtures of the student's recipe go on as ever; only the label of an image becomes soft.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from skindx.core.atomic_files import atomic_file
from skindx.data.manifest import read_manifest, split_of
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.provenance import MANIFEST_SHA256, provenance_value
from skindx.models.calibration.temperature import apply_temperature
from skindx.models.ensemble.combination import log
from skindx.models.ensemble.predicting import predict_records
from skindx.models.tensors import save_tensors
from skindx.training.config.ensemble import EnsembleSettings
from skindx.training.config.run import TrainSettings
from skindx.training.feeding.images import class_numbers
from skindx.training.made_from import fingerprint_of
from skindx.training.parallel.devices import resolve_accelerator

STUDENT, TARGETS = "student", "targets.safetensors"

# N = training images, C = classes


def student_settings(run: Path, settings: TrainSettings) -> TrainSettings:
    """Return the training of the student in RUN/student."""
    assert settings.distil is not None
    student = settings.distil.student.model_copy(update={"targets": run / STUDENT / TARGETS})
    return settings.model_copy(
        update={
            "name": f"{settings.name}-student",
            "members": (student,),
            "reused": (),
            "soups": (),
            "ensemble": EnsembleSettings(),
            "detector": None,
            "fusion": None,
            "distil": None,
        }
    )


def write_targets(run: Path, dataset: Path, settings: TrainSettings, teacher: Bundle) -> None:
    """Write what the student is to learn of each training image, unless it is there already."""
    assert settings.distil is not None
    distil, spec = settings.distil, teacher.spec
    expected = fingerprint_of(
        {
            "weights": {k: v for k, v in spec.files.items() if k.startswith("members/")},
            "members": [member.model_dump(mode="json") for member in spec.members],
            "combination": spec.combination.model_dump(mode="json"),
            "temperatures": [spec.temperature, distil.temperature],
            "share": distil.share,
            "manifest": provenance_value(spec.provenance, MANIFEST_SHA256),
        }
    )
    file = run / STUDENT / TARGETS
    if file.is_file() and _fingerprint(file) == expected:
        return
    records = split_of(read_manifest(dataset), "train")
    ensemble = teacher.ensemble(resolve_accelerator(settings.engine.accelerator))
    teacher_NC, _ = predict_records(ensemble, dataset, records)
    truth_N = class_numbers(records, teacher.taxonomy.keys)
    targets_NC = soft_targets(teacher_NC, truth_N, distil.temperature, distil.share)
    with atomic_file(file) as temporary:
        tensors = {"targets": torch.from_numpy(targets_NC).float()}
        save_tensors(tensors, temporary, {"mark": expected})


def soft_targets(
    teacher_NC: NDArray[np.float64], truth_N: NDArray[np.int64], temperature: float, share: float
) -> NDArray[np.float64]:
    """Return what the student learns: `share` of the softened teacher, the rest of the label."""
    soft_NC = apply_temperature(log(teacher_NC), temperature)
    label_NC: NDArray[np.float64] = np.eye(teacher_NC.shape[1])[truth_N]
    return share * soft_NC + (1 - share) * label_NC


def _fingerprint(file: Path) -> str | None:
    """Return the fingerprint of the targets; None for a file that is not ours: it is replaced."""
    try:
        with safe_open(file, framework="numpy") as opened:
            found: str | None = (opened.metadata() or {}).get("mark")
    except (OSError, SafetensorError):
        return None
    return found

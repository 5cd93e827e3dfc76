"""A single student that learns from the whole ensemble (Hinton et al. 2015), for CPU serving.

The teacher is asked once for each training picture, on the central square and in its own views,
and not anew for each crop of each epoch: the same crop for both teaches somewhat better (Beyer et
al. 2022), but makes every step of a small network as dear as a step of all large ones. Crops and
mixtures of the student's recipe go on as ever; only the label of a picture becomes soft.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from skindx.data.manifest import Record, read_manifest, split_of
from skindx.errors import UserError
from skindx.files import atomic_file
from skindx.models.bundle.bundle import (
    Bundle,
)
from skindx.models.bundle.provenance import MANIFEST_SHA256, provenance_value
from skindx.models.calibration.temperature import (
    apply_temperature,
)
from skindx.models.ensemble.combination import (
    log,
)
from skindx.models.ensemble.predicting import (
    predict_records,
)
from skindx.models.tensors import load_tensors, save_tensors
from skindx.states import UnfitStateError, check_like
from skindx.training.config.ensemble import (
    EnsembleSettings,
)
from skindx.training.config.run import (
    TrainSettings,
)
from skindx.training.feeding.pictures import class_numbers
from skindx.training.member import fingerprint_of
from skindx.training.process_group import (
    resolve_accelerator,
)

STUDENT, TARGETS = "student", "targets.safetensors"

# N = training pictures, C = classes


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
    """Write what the student is to learn of each training picture, unless it is there already."""
    assert settings.distil is not None
    distil, spec = settings.distil, teacher.spec
    mark = fingerprint_of(
        {
            "weights": {k: v for k, v in spec.files.items() if k.startswith("members/")},
            "members": [each.model_dump(mode="json") for each in spec.members],
            "combination": spec.combination.model_dump(mode="json"),
            "temperatures": [spec.temperature, distil.temperature],
            "share": distil.share,
            "manifest": provenance_value(spec.provenance, MANIFEST_SHA256),
        }
    )
    file = run / STUDENT / TARGETS
    if file.is_file() and _mark(file) == mark:
        return
    records = split_of(read_manifest(dataset), "train")
    ensemble = teacher.ensemble(resolve_accelerator(settings.engine.accelerator))
    said_NC, _ = predict_records(ensemble, dataset, records)
    truth_N = class_numbers(records, teacher.taxonomy.keys)
    targets_NC = soft_targets(said_NC, truth_N, distil.temperature, distil.share)
    with atomic_file(file) as temporary:
        tensors = {"targets": torch.from_numpy(targets_NC).float()}
        save_tensors(tensors, temporary, {"mark": mark})


def soft_targets(
    said_NC: NDArray[np.float64], truth_N: NDArray[np.int64], temperature: float, share: float
) -> NDArray[np.float64]:
    """Return what the student learns: `share` of the softened teacher, the rest of the label."""
    soft_NC = apply_temperature(log(said_NC), temperature)
    label_NC: NDArray[np.float64] = np.eye(said_NC.shape[1])[truth_N]
    return share * soft_NC + (1 - share) * label_NC


def load_targets(file: Path, records: Sequence[Record], classes: int) -> NDArray[np.float32]:
    """Read the soft targets of these training pictures, N x C of `classes`. Raises UserError."""
    try:
        found = load_tensors(file)
        like_NC = torch.empty(len(records), classes, device="meta")
        check_like(found, {"targets": like_NC}, "it")
    except (UserError, UnfitStateError) as error:
        raise UserError(
            f"{file} does not hold soft targets for {len(records)} training pictures and {classes} "
            f"classes ({str(error).rstrip('.')}); remove it and distil anew on this dataset."
        ) from None
    targets_NC: NDArray[np.float32] = found["targets"].numpy()
    return targets_NC


def _mark(file: Path) -> str | None:
    """Return what the targets were made of; None for a file that is not ours, which is replaced."""
    try:
        with safe_open(file, framework="numpy") as opened:
            mark: str | None = (opened.metadata() or {}).get("mark")
    except (OSError, SafetensorError):
        return None
    return mark

"""A finished detector on disk: RUN/detector with model, weights, spec and history."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import FolderKind, atomic_folder, sha256_file, write_csv, write_json
from skindx.core.errors import UserError
from skindx.core.untrusted import read_json
from skindx.data.layout import MANIFEST
from skindx.models.bundle.bundle import DetectorParts
from skindx.models.detector.detector import (
    MODEL_WEIGHTS,
    MODEL_YAML,
    DetectorSpec,
    NoUltralyticsError,
    load_detector,
    read_detector,
    save_detector,
)
from skindx.models.detector.recall import DetectorRecall
from skindx.training.checkpoint.keeper import checkpoint_folder, refuse_others
from skindx.training.config.run import TrainSettings
from skindx.training.finished.fingerprint import detector_fingerprint, matches
from skindx.training.made_from import made_from

FOLDER, INDEX = "detector", "detector.json"
_HISTORY = "history.csv"
_DETECTOR = FolderKind("a detector", INDEX, (MODEL_YAML, MODEL_WEIGHTS, _HISTORY))

CHECKPOINT = "_detector"
"""Its folder among the members' checkpoints, whose names begin otherwise."""


def is_trained(run: Path, settings: TrainSettings, dataset: Path) -> bool:
    """True when nothing is left to train: RUN/detector is there, or another run's is taken.

    Raises UserError when other settings or data made RUN/detector or its checkpoints.
    """
    if settings.detector is None or settings.detector.from_run:
        return True
    fingerprint = detector_fingerprint(settings, dataset)
    if matches(run / FOLDER / INDEX, fingerprint):
        return True
    refuse_others(checkpoint_folder(run, CHECKPOINT), fingerprint)
    _DETECTOR.check(run / FOLDER)
    return False


def save_parts(
    run: Path, dataset: Path, parts: DetectorParts, history: list[dict[str, Any]], fingerprint: str
) -> None:
    """Write RUN/detector in one step: it is there whole, or not at all."""
    with atomic_folder(run / FOLDER, _DETECTOR) as folder:
        save_detector(folder, parts.config, parts.state)
        write_csv(folder / _HISTORY, history[0], [row.values() for row in history])
        index = {
            "fingerprint": fingerprint,
            **made_from(fingerprint),
            "manifest": sha256_file(dataset / MANIFEST),
            "spec": parts.spec.model_dump(mode="json"),
            **({"recall": parts.recall.model_dump(mode="json")} if parts.recall else {}),
            **history[-1],
        }
        write_json(folder / INDEX, index)


def load_parts(run: Path) -> DetectorParts:
    """Read a run's finished detector. Raises UserError when there is none."""
    file = run / FOLDER / INDEX
    index = _index(run)
    spec, found = index.get("spec"), index.get("recall")
    if not isinstance(spec, dict):
        raise UserError(f"{file} has no detector spec; train one first.")
    asked = DetectorSpec.parse(spec, str(file), expand=False)
    with suppress(NoUltralyticsError):  # which compares layers and weights
        load_detector(run / FOLDER, asked)
    config, state = read_detector(run / FOLDER)
    recall = DetectorRecall.parse(found, str(file), expand=False) if found is not None else None
    return DetectorParts(asked, config, state, recall)


def _index(run: Path) -> dict[str, Any]:
    file = run / FOLDER / INDEX
    if not file.is_file():
        raise UserError(f"{run} holds no finished detector ({FOLDER}/{INDEX}); train one first.")
    return read_json(file, finite=False)


def weights_file(run: Path) -> Path:
    """Return where a run's finished detector has its weights."""
    return run / FOLDER / MODEL_WEIGHTS


def packed_parts(run: Path, settings: TrainSettings) -> DetectorParts | None:
    """Return the detector that goes into the run's bundle: its own, another run's, or none."""
    if settings.detector is None:
        return None
    return load_parts(settings.detector.from_run or run)


def packed_origin(settings: TrainSettings) -> dict[str, str]:
    """Return for the bundle's provenance what a detector of another run learned from."""
    if settings.detector is None or settings.detector.from_run is None:
        return {}
    manifest = _index(settings.detector.from_run).get("manifest")
    if not isinstance(manifest, str):
        raise UserError(
            f"{settings.detector.from_run / FOLDER / INDEX} does not say which manifest its "
            "detector learned from; train it again."
        )
    return {"detector's manifest sha256": manifest}

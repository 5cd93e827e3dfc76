"""Finished members and the finished detector on disk.

A member is its weights, what they were trained with, and its predictions on validation as NumPy
archives, bounded before they are unpacked; never a pickle. The detector is RUN/detector.
"""

import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.core.atomic_files import FolderKind, atomic_folder, sha256_file, write_csv, write_json
from skindx.core.errors import UserError
from skindx.core.untrusted import open_plain, read_json
from skindx.data.layout import MANIFEST
from skindx.data.origin import ImageOrigin
from skindx.models.bounded_files import load_tensors, save_tensors
from skindx.models.bundle.bundle import DetectorParts
from skindx.models.bundle.bundle_index import DETECTORS_MANIFEST, origin_beside
from skindx.models.detector import (
    MODEL_WEIGHTS,
    MODEL_YAML,
    DetectorRecall,
    DetectorSpec,
    NoUltralyticsError,
    load_detector,
    read_detector,
    save_detector,
)
from skindx.training.checkpoint.fingerprints import detector_fingerprint, made_from, matches
from skindx.training.checkpoint.keeper import checkpoint_folder, refuse_mismatch
from skindx.training.config.run import TrainSettings

_MOST_BYTES = 2**32


def read_arrays(path: Path, wanted: Mapping[str, tuple[str, int]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name, each of the kind and dimensions wanted.

    Raises UserError for any other file.
    """
    try:
        with open(open_plain(path, _MOST_BYTES), "rb") as opened:  # noqa: PTH123 (a descriptor)
            with zipfile.ZipFile(opened) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
                    raise UserError(
                        f"{path} unpacks to more than {_MOST_BYTES} bytes, so it is damaged; "
                        "delete its folder and run `skindx train` again."
                    )
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as arrays:
                result = {name: arrays[name] for name in wanted}
    except UserError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, MemoryError) as error:
        detail = " ".join(str(error).split())[:120]
        raise UserError(
            f"{path} is damaged or is not an archive of arrays ({detail}); delete its folder and "
            "run `skindx train` again."
        ) from None
    kinds = {name: (array.dtype.kind, array.ndim) for name, array in result.items()}
    if kinds != wanted:
        raise UserError(
            f"{path} does not have the expected arrays; delete its folder and run `skindx train` "
            "again."
        )
    return result


WEIGHTS, VALIDATION, HISTORY = "model.safetensors", "validation.npz", "history.csv"
_MEMBER = FolderKind("a member", "member.json", (WEIGHTS, VALIDATION, HISTORY), (HISTORY,))

# N = validation images, C = classes


@dataclass(frozen=True)
class FinishedMember:
    """A member that `save_member` wrote."""

    state: dict[str, torch.Tensor]
    validation_NC: NDArray[np.float64]
    """Log-probabilities of the validation images, in manifest order."""
    truth_N: NDArray[np.int64]


def member_folder(run: Path, name: str) -> Path:
    return run / "members" / name


def is_finished(run: Path, name: str, expected: str) -> bool:
    """True when the member was trained with these settings and data; see `matches`.

    Its checkpoints, when it is not finished, must be of these settings and data too.
    """
    refuse_mismatch(checkpoint_folder(run, name), expected)
    _MEMBER.check(member_folder(run, name))
    return matches(member_folder(run, name) / "member.json", expected)


def save_member(
    run: Path, name: str, finished: FinishedMember, history: list[dict[str, Any]], fingerprint: str
) -> None:
    """Write a member in one step: it is there whole, or not at all."""
    with atomic_folder(member_folder(run, name), _MEMBER) as folder:
        save_tensors(
            {key: value.cpu().contiguous() for key, value in finished.state.items()},
            folder / WEIGHTS,
        )
        np.savez(folder / VALIDATION, log=finished.validation_NC, truth=finished.truth_N)
        write_history(folder / HISTORY, history)
        write_json(
            folder / "member.json",
            {"name": name, "fingerprint": fingerprint, **made_from(fingerprint), **history[-1]},
        )


def load_member(run: Path, name: str) -> FinishedMember:
    """Read a finished member. Raises UserError for files that `save_member` did not write."""
    folder = member_folder(run, name)
    arrays = read_arrays(folder / VALIDATION, {"log": ("f", 2), "truth": ("i", 1)})
    return FinishedMember(load_tensors(folder / WEIGHTS), arrays["log"], arrays["truth"])


def write_history(file: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Write one row an epoch; a figure that an epoch does not have is left empty."""
    columns = list(dict.fromkeys(key for row in history for key in row))
    write_csv(file, columns, ([row.get(key, "") for key in columns] for row in history))


State = dict[str, Tensor]

_LARGEST, _LEAST = 65_504.0, 2.0**-14
"""Largest number of half precision, and the smallest one with all its digits."""


def in_half_precision(state: Mapping[str, Tensor]) -> State:
    """Return weights in half precision, but as they are where that would lose their range.

    So stay tensors with a number above 65,504, those of nothing but numbers below 2^-14, and
    variances of a batch normalisation, which are divided by, with one such number.
    """
    return {
        name: value.half() if value.is_floating_point() and _has_range(name, value) else value
        for name, value in state.items()
    }


def _has_range(name: str, value: Tensor) -> bool:
    sizes = value.detach().float().abs()
    sizes = sizes[sizes > 0]  # half precision holds 0
    if not sizes.numel():
        return True
    least = sizes.min() if name.endswith("running_var") else sizes.max()
    return bool(sizes.max() <= _LARGEST and least >= _LEAST)


FOLDER, INDEX = "detector", "detector.json"
_HISTORY = "history.csv"
_DETECTOR = FolderKind("a detector", INDEX, (MODEL_YAML, MODEL_WEIGHTS, _HISTORY))

CHECKPOINT = "_detector"
"""Name of the detector's folder among the members' checkpoints, whose names begin otherwise."""


def is_trained(run: Path, settings: TrainSettings, dataset: Path) -> bool:
    """True when nothing is left to train: RUN/detector is there, or another run's is taken.

    Raises UserError when other settings or data made RUN/detector or its checkpoints.
    """
    if settings.detector is None or settings.detector.from_run:
        return True
    fingerprint = detector_fingerprint(settings, dataset)
    if matches(run / FOLDER / INDEX, fingerprint):
        return True
    refuse_mismatch(checkpoint_folder(run, CHECKPOINT), fingerprint)
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
            "images": parts.images.model_dump(mode="json"),
            **({"recall": parts.recall.model_dump(mode="json")} if parts.recall else {}),
            **history[-1],
        }
        write_json(folder / INDEX, index)


def load_parts(run: Path) -> DetectorParts:
    """Read a run's finished detector. Raises UserError when there is none."""
    file = run / FOLDER / INDEX
    index = _index(run)
    spec, result = index.get("spec"), index.get("recall")
    if not isinstance(spec, dict):
        raise UserError(
            f"{file} has no description of a detector; train the detector of this run again."
        )
    detector_spec = DetectorSpec.parse(spec, str(file), expand=False)
    with suppress(NoUltralyticsError):  # which compares layers and weights
        load_detector(run / FOLDER, detector_spec)
    config, state = read_detector(run / FOLDER)
    recall = DetectorRecall.parse(result, str(file), expand=False) if result is not None else None
    if "images" in index:
        images = ImageOrigin.parse(index["images"], str(file), expand=False)
    else:  # of an older version
        images = origin_beside(file)
    return DetectorParts(detector_spec, config, state, recall, images)


def _index(run: Path) -> dict[str, Any]:
    file = run / FOLDER / INDEX
    if not file.is_file():
        raise UserError(
            f"{run} has no trained detector ({FOLDER}/{INDEX} is missing); run `skindx train` on "
            "this run again."
        )
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
            f"{settings.detector.from_run / FOLDER / INDEX} does not name the dataset of its "
            "training; train that detector again."
        )
    return {DETECTORS_MANIFEST: manifest}

"""`skindx export`: bodies made, checked on validation images, and only then in the bundle."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.atomic_files import (
    atomic_folder,
    entries,
    sha256_file,
    temporary_folder,
    write_json,
)
from skindx.core.errors import UserError
from skindx.core.machine import require_extra
from skindx.data.layout import MANIFEST
from skindx.data.loader.source import Files
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.models.bundle.bundle import BUNDLE, Bundle, open_bundle
from skindx.models.bundle.bundle_changes import put_folder
from skindx.models.bundle.installed import copy_bundle
from skindx.models.classifier.preprocess import Preprocess, framed_square
from skindx.models.ensemble import Ensemble, Member, predict_members
from skindx.models.exports.backend_choice import with_temperatures
from skindx.models.exports.fidelity import (
    check_refittable,
    good_enough,
    known,
    measure_accuracy,
    measure_gain,
    measure_parity,
    parity_with,
    refit_rules,
    refit_temperatures,
    refuse_loss,
    refuse_without_gain,
    require_parity,
    truth,
)
from skindx.models.exports.onnx_backend import prepare, write_onnx
from skindx.models.exports.runtimes import (
    SPEC,
    ExportSpec,
    Gain,
    Parity,
    Precision,
    Prepared,
    Runtime,
    backend_of,
    folder_of,
    load_body,
    make_body,
    quantise,
    unsupported,
    versions,
    with_export,
)

_SAMPLES = 64
"""Number of training images from which int8 learns the ranges of its activations."""


def export_bundle(path: Path, to: Runtime, precision: Precision, dataset: Path) -> ExportSpec:
    """Export every member's body and put it into the bundle, in the place of an older such export.

    int8 also fits temperatures, sets and urgent risk again, and is measured on the test split.
    Raises UserError, and the bundle is as it was, where this machine cannot run such an export,
    where it does not answer the dataset's images as the networks do, and where int8 gains nothing.
    """
    if why := unsupported(to, precision):
        raise UserError(why)
    if precision == "int8":
        require_extra("runtimes", *backend_of(to).quantisers, purpose=f"int8 for {to}")
    records = read_manifest(dataset)
    val = split_of(records, "val")
    if not val:
        raise UserError(
            f"{dataset} has no validation images, which the check of an export needs; give a "
            "dataset with validation images."
        )
    bundle = open_bundle(path)
    ensemble = bundle.ensemble()
    # A folder beside the bundle lets its files be linked into the bundle, not copied.
    with temporary_folder(path) as beside:
        folder = beside / "export"
        folder.mkdir()
        if precision == "int8":
            facts = _coarse(
                bundle, ensemble, to=to, folder=folder, dataset=dataset, records=records
            )
        else:
            facts = {
                "parity": _exact(
                    ensemble.members,
                    to=to,
                    precision=precision,
                    folder=folder,
                    dataset=dataset,
                    val=val,
                )
            }
        spec = ExportSpec(
            to=to,
            precision=precision,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions(to, precision),
            manifest=sha256_file(dataset / MANIFEST),
            **facts,
        )
        write_json(folder / SPEC, spec.model_dump(mode="json"))
        put_folder(path, folder_of(to, precision), folder)
    return spec


def export_copy(
    path: Path, out: Path, to: Runtime, precision: Precision, dataset: Path
) -> ExportSpec:
    """Write a copy of a bundle that has the export too; nothing is written where that fails."""
    bundle = open_bundle(path)
    with atomic_folder(out, BUNDLE) as folder:
        copy = folder / "bundle"
        copy_bundle(bundle, copy)
        spec = export_bundle(copy, to, precision, dataset)
        for part in entries(copy):
            part.replace(folder / part.name)
        copy.rmdir()
    return spec


def _exact(
    members: Sequence[Member],
    *,
    to: Runtime,
    precision: Precision,
    folder: Path,
    dataset: Path,
    val: Sequence[Record],
) -> tuple[Parity, ...]:
    exported = []
    for member in members:
        file = folder / f"{member.name}{backend_of(to).suffix}"
        make_body(file, member.classifier, member.preprocess, to=to, precision=precision)
        exported.append(with_export(member, file, to, precision))
    parity = measure_parity(members, exported, dataset, val)
    for result in parity:
        require_parity(result, precision)
    return tuple(parity)


def _coarse(
    bundle: Bundle,
    ensemble: Ensemble,
    *,
    to: Runtime,
    folder: Path,
    dataset: Path,
    records: Sequence[Record],
) -> dict[str, Any]:
    """Return what an int8 export says of itself beyond its names."""
    if bundle.spec.adapted:
        raise UserError(
            f"{bundle.path} was adapted to local images, and an int8 export would fit its "
            f"thresholds to {dataset} instead; choose another --precision."
        )
    train, val, test = (split_of(records, split) for split in ("train", "val", "test"))
    if not train:
        raise UserError(
            f"{dataset} has no training images, which an int8 export needs; give a dataset with "
            "training images."
        )
    check_refittable(bundle, records, dataset)
    members, taxonomy = ensemble.members, bundle.taxonomy
    files = Files(dataset, train, bundle.spec.decoding, limited=True)
    eager_MNC = predict_members(members, dataset, val)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        exported, parity, kept, gain = make_int8(
            members,
            lambda member: _samples(files, member.preprocess),
            lambda at, member: parity_with(eager_MNC[at], member, dataset, val),
            to=to,
            folder=folder,
            work=Path(work),
        )
    temperatures = tuple(member.temperature for member in members), ensemble.temperature
    if judged := known(val, taxonomy):
        exported_MNC = predict_members(exported, dataset, val)
        truth_N = truth([val[n] for n in judged], taxonomy)
        temperatures = refit_temperatures(
            ensemble, eager_MNC[:, judged], exported_MNC[:, judged], truth_N
        )
    served = with_temperatures(replace(ensemble, members=tuple(exported)), *temperatures)
    accuracy = measure_accuracy(ensemble, served, taxonomy, dataset, test)
    if accuracy:
        refuse_loss(accuracy, f"{to} int8")
    calibration = refit_rules(bundle, served, temperatures, dataset, records)
    return {
        "parity": tuple(parity),
        "kept": kept,
        "gain": gain,
        "accuracy": accuracy,
        "calibration": calibration,
    }


def _samples(files: Files, preprocess: Preprocess) -> list[NDArray[np.uint8]]:
    count = len(files.records)
    chosen = range(0, count, max(1, count // _SAMPLES))[:_SAMPLES]
    return [framed_square(files.image(at), preprocess) for at in chosen]


_IMAGES = 8


def rank_layers(prepared: Prepared) -> list[str]:
    """Return the layers of a graph, the one that changes the last map most first.

    The change is ||map of one layer in int8 - map||² / ||map||² over some of the samples. ONNX
    Runtime measures it, also for other runtimes: the rounding is the layer's own.
    """
    squares_BSS3 = torch.from_numpy(np.stack(prepared.samples[:_IMAGES]))
    with tempfile.TemporaryDirectory(dir=prepared.graph.parent) as folder:
        file = Path(folder) / "one.onnx"
        exact = _map(prepared.graph, squares_BSS3)
        errors = {}
        for layer in prepared.layers:
            quantise(prepared, file, "onnx", [other for other in prepared.layers if other != layer])
            errors[layer] = float(((_map(file, squares_BSS3) - exact) ** 2).sum())
    # An error that is no number is the worst.
    return sorted(errors, key=lambda layer: -np.nan_to_num(errors[layer], nan=np.inf))


def _map(file: Path, squares_BSS3: torch.Tensor) -> NDArray[np.float64]:
    return load_body(file, "onnx", "fp32")(squares_BSS3).double().numpy()


Check = Callable[[int, Member], Parity]
"""Number and export of a member: how it answers beside its network."""


def make_int8(
    members: Sequence[Member],
    samples: Callable[[Member], Sequence[NDArray[np.uint8]]],
    check: Check,
    *,
    to: Runtime,
    folder: Path,
    work: Path,
) -> tuple[list[Member], list[Parity], dict[str, tuple[str, ...]], Gain]:
    """Write the members' bodies into `folder`; `work` is for what goes again.

    Returns the members with those bodies, their parity, the layers kept in fp32 by member, and the
    gain. Raises UserError where nothing is gained, and where most of the layers in fp32 do not
    bring a member back to its answers.
    """
    prepared = [_prepared(member, samples(member), work) for member in members]
    files = [folder / f"{member.name}{backend_of(to).suffix}" for member in members]
    for one, file in zip(prepared, files, strict=True):
        quantise(one, file, to)
    exported = [_loaded(*pair, to) for pair in zip(members, files, strict=True)]
    name = f"{to} int8"
    # First, since it takes seconds, and keeping layers in fp32 makes nothing faster.
    gain = measure_gain(members, exported, to)
    refuse_without_gain(gain, name)
    parity, kept = [], {}
    for at, member in enumerate(members):
        exported[at], result, layers = _until_good(
            exported[at], prepared[at], files[at], to, partial(check, at)
        )
        parity.append(result)
        if layers:
            kept[member.name] = layers
    if kept:
        gain = measure_gain(members, exported, to)
        refuse_without_gain(gain, name)
    return exported, parity, kept, gain


def _until_good(
    exported: Member, prepared: Prepared, file: Path, to: Runtime, check: Callable[[Member], Parity]
) -> tuple[Member, Parity, tuple[str, ...]]:
    result = check(exported)
    if good_enough(result, "int8"):
        return exported, result, ()
    ranked, count = rank_layers(prepared), 1
    while count < len(ranked):
        layers = tuple(ranked[:count])
        quantise(prepared, file, to, layers)
        exported = _loaded(exported, file, to)
        result = check(exported)
        if good_enough(result, "int8"):
            return exported, result, layers
        count *= 2
    require_parity(result, "int8")
    raise AssertionError("what is not good enough is refused")


def _prepared(member: Member, samples: Sequence[NDArray[np.uint8]], work: Path) -> Prepared:
    folder = work / member.name
    folder.mkdir()
    graph = folder / "exact.onnx"
    write_onnx(graph, member.classifier, member.preprocess.size)
    return prepare(graph, samples, folder)


def _loaded(member: Member, file: Path, to: Runtime) -> Member:
    return replace(member, exported=load_body(file, to, "int8"))

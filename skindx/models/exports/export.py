"""`skindx export`: bodies made, checked on validation images, and only then in the bundle."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.layout import MANIFEST
from skindx.data.loader.source import Files
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.errors import UserError
from skindx.files import sha256_file, write_json
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.change import put_folder
from skindx.models.classifier.preprocess import Preprocess, centre_square
from skindx.models.ensemble.ensemble import Member
from skindx.models.exports.making import make_body
from skindx.models.exports.parity import measure_parity, refuse
from skindx.models.exports.runtimes import load_body, unsupported, versions
from skindx.models.exports.spec import SPEC, SUFFIX, ExportSpec, Precision, Runtime, folder_of

_SAMPLES = 64
"""Training images from which int8 learns the ranges of its activations."""


def export_bundle(path: Path, to: Runtime, precision: Precision, dataset: Path) -> ExportSpec:
    """Export every member's body and put it into the bundle, in the place of an older such export.

    Raises UserError, and the bundle is as it was, where this machine cannot run such an export,
    and where it does not answer the dataset's validation images as the networks do.
    """
    if why := unsupported(to, precision):
        raise UserError(why)
    records = read_manifest(dataset)
    val = split_of(records, "val")
    if not val:
        raise UserError(f"{dataset} has no validation images to check an export on; add some.")
    members = open_bundle(path).ensemble().members
    # Beside the bundle: its files are then linked into it, not copied.
    with tempfile.TemporaryDirectory(prefix=f"{path.name}.tmp-", dir=path.resolve().parent) as name:
        folder = Path(name)
        learned = split_of(records, "train") if precision == "int8" else []
        for member in members:
            samples = _samples(dataset, learned, member.preprocess)
            file = folder / f"{member.name}{SUFFIX[to]}"
            make_body(
                file,
                member.classifier,
                member.preprocess,
                to=to,
                precision=precision,
                samples=samples,
            )
        exported = [_loaded(member, folder, to, precision) for member in members]
        parity = measure_parity(members, exported, dataset, val)
        for result in parity:
            refuse(result, precision)
        spec = ExportSpec(
            to=to,
            precision=precision,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions(to),
            manifest=sha256_file(dataset / MANIFEST),
            parity=tuple(parity),
        )
        write_json(folder / SPEC, spec.model_dump(mode="json"))
        put_folder(path, folder_of(to, precision), folder)
    return spec


def _samples(
    dataset: Path, records: Sequence[Record], preprocess: Preprocess
) -> list[NDArray[np.uint8]]:
    step = max(1, len(records) // _SAMPLES)
    chosen = records[::step][:_SAMPLES]
    files = Files(dataset, chosen)
    return [centre_square(files.image(at), preprocess) for at in range(len(chosen))]


def _loaded(member: Member, folder: Path, to: Runtime, precision: Precision) -> Member:
    file = folder / f"{member.name}{SUFFIX[to]}"
    return replace(member, exported=load_body(file, to, precision))

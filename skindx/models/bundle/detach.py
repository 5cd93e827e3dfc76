"""Archives of bundles: whole ones, and without the trunk for weights that may not be passed on.

A detached archive is the bundle without the files of its folder `trunks`; no verb opens it. The
receiver fetches the trunk from its publisher. The bundle of both has the same bytes and digest.
"""

import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from skindx.core.atomic_files import atomic_file, atomic_folder, is_clutter, sha256_file
from skindx.core.errors import UserError, instead_of
from skindx.core.untrusted import MALFORMED, MEGABYTE, parse_json
from skindx.models.bounded_files import MOST_BYTES, save_tensors
from skindx.models.bundle.bundle import BUNDLE, Bundle, open_bundle, trunk_file
from skindx.models.bundle.bundle_index import (
    CARD,
    EVALUATED,
    EXPORTS,
    INDEX,
    METRICS,
    BundleSpec,
    MemberSpec,
)
from skindx.models.classifier.pretrained import Trunk, open_trunk, pretrained_file
from skindx.models.towers import HUB, resolve_tower

_NO_ZIP = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, OSError, RuntimeError
)  # fmt: skip
"""What a damaged, an encrypted or a forged archive may raise, beside MALFORMED."""
NOTE = "detached.json"
"""What the archive says of the trunks that it lacks."""

_LONGEST_INDEX = 32 * MEGABYTE
_CHUNK = 1 << 20


def detach(path: Path, out: Path, expect: str | None = None) -> list[str]:
    """Write an archive of a bundle without its trunks; return their names.

    Raises UserError for a bundle whose weights are all its own.
    """
    bundle = open_bundle(path, expect)
    trunks = {member.trunk: member for member in bundle.spec.members if member.trunk}
    if not trunks:
        raise UserError(
            f"bundle {path} has no trunk to detach, because its members changed all weights in "
            "training; train heads on a frozen trunk (trunk: frozen)."
        )
    if any(name.startswith(f"{EXPORTS}/") for name in bundle.spec.files):
        raise UserError(
            f"the exports of bundle {path} also have the trunk; remove the exports first, and run "
            "`skindx export` after `skindx bundle attach`."
        )
    left_out = {trunk_file(trunk) for trunk in trunks}
    note = {key: _described(member, bundle.spec) for key, member in trunks.items()}
    with atomic_file(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.write(path / INDEX, INDEX)
        archive.writestr(NOTE, json.dumps({"trunks": note}, indent=2) + "\n")
        for name in {**bundle.spec.files, **bundle.beside}:
            if name not in left_out:
                archive.write(path / name, name)
    return [_name(member) for member in trunks.values()]


def attach(
    archive: Path, out: Path, *, tower: str | None = None, weights: Path | None = None
) -> Bundle:
    """Complete an archive with its trunk and write the bundle that it was.

    The trunk comes from a file of `weights`, from a `tower` (hf-hub: or local-dir:), or else from
    where the bundle says that it was taken. Raises UserError for an archive that is damaged, and
    for weights that are not the trunk's, by their SHA-256; an earlier bundle alone is replaced.
    """
    BUNDLE.check(out)
    try:
        with zipfile.ZipFile(archive) as opened:
            spec = _index(opened, archive)
            with atomic_folder(out, BUNDLE) as folder:
                for name in (INDEX, *_contained(opened, spec, archive)):
                    _extract(opened, name, folder / name)
                for key, member in _trunks(spec).items():
                    file = folder / trunk_file(key)
                    _write_trunk(_trunk_of(member, tower, weights), file)
                    _check(file, spec.files.get(trunk_file(key), ""), member)
                open_bundle(folder)  # every hash, before it takes its place
    except (*_NO_ZIP, *MALFORMED) as error:
        if isinstance(error, UserError):
            raise
        detail = " ".join(str(error).split())[:120]
        raise UserError(
            f"{archive} is not a complete archive of `skindx bundle detach` ({detail}); copy it "
            "again from its source."
        ) from None
    return open_bundle(out)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the zip of a bundle's folder into an empty one, and return where the bundle is.

    Raises UserError for what is no such archive, is detached, or is larger than any bundle.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = [
                entry
                for entry in opened.infolist()
                if not entry.is_dir() and not is_clutter(entry.filename)
            ]
            index = min(
                (one.filename for one in entries if PurePosixPath(one.filename).name == INDEX),
                key=len,
                default="",
            )
            if not index:
                raise UserError(
                    f"{archive} has no {INDEX}; give a zip file of the folder of a bundle."
                )
            if NOTE in opened.namelist():
                raise UserError(f"{archive} has no trunk; add it with `skindx bundle attach`.")
            if sum(entry.file_size for entry in entries) > MOST_BYTES:
                raise UserError(f"{archive} is larger than any bundle; do not use it.")
            for entry in entries:
                pure = PurePosixPath(entry.filename)
                if pure.is_absolute() or ".." in pure.parts or "\\" in entry.filename:
                    raise UserError(
                        f"{archive} has the file {entry.filename[:80]!r}, which does not belong "
                        "in a bundle; copy the archive again."
                    )
                _extract(opened, entry.filename, folder / pure)
    except (*_NO_ZIP, *MALFORMED) as error:
        if isinstance(error, UserError):
            raise
        detail = " ".join(str(error).split())[:120]
        advice = instead_of(archive, "bundle") if archive.suffix != ".zip" else "copy it again"
        raise UserError(f"{archive} is not a zip file of a bundle ({detail}); {advice}.") from None
    return folder / PurePosixPath(index).parent


def _described(member: MemberSpec, spec: BundleSpec) -> dict[str, str]:
    tower = member.tower
    return {
        "name": _name(member),
        "revision": tower.revision if tower else "",
        "licence": tower.licence if tower else "",
        "sha256": spec.files[trunk_file(member.trunk)],
    }


def _name(member: MemberSpec) -> str:
    return member.tower.name if member.tower else member.classifier.model


def _trunks(spec: BundleSpec) -> dict[str, MemberSpec]:
    return {member.trunk: member for member in spec.members if member.trunk}


def _index(opened: zipfile.ZipFile, archive: Path) -> BundleSpec:
    names = set(opened.namelist())
    if not {INDEX, NOTE} <= names:
        raise UserError(
            f"{archive} is not an archive of `skindx bundle detach`; give the file that this "
            "command wrote."
        )
    if opened.getinfo(INDEX).file_size > _LONGEST_INDEX:
        raise UserError(f"{archive} has an {INDEX} that is too large; do not use this archive.")
    origin = f"{archive}: {INDEX}"
    return BundleSpec.parse(parse_json(opened.read(INDEX), origin), origin, expand=False)


def _contained(opened: zipfile.ZipFile, spec: BundleSpec, archive: Path) -> Iterator[str]:
    """Yield the names of the bundle's files. Raises UserError for others, and for packed ones."""
    missing = {trunk_file(trunk) for trunk in _trunks(spec)}
    beside = {EVALUATED, METRICS, CARD} if EVALUATED in opened.namelist() else set()
    names = {*spec.files, *beside} - missing
    if set(opened.namelist()) != {INDEX, NOTE, *names}:
        raise UserError(
            f"{archive} has other files than its index lists; copy the archive again from its "
            "source."
        )
    entries = [opened.getinfo(name) for name in names]
    if sum(entry.file_size for entry in entries) > MOST_BYTES:
        raise UserError(f"{archive} is larger than any bundle; do not use it.")
    for entry in (*entries, opened.getinfo(INDEX)):
        pure = PurePosixPath(entry.filename)
        plain = not pure.is_absolute() and ".." not in pure.parts and entry.filename == str(pure)
        # Stored as it is: what would grow when it is unpacked was not written by `detach`.
        if not plain or entry.compress_type != zipfile.ZIP_STORED:
            raise UserError(
                f"{archive} has the file {entry.filename[:80]!r}, which does not belong in a "
                "bundle; copy the archive again from its source."
            )
    yield from sorted(names)


def _extract(opened: zipfile.ZipFile, name: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with opened.open(name) as source, file.open("xb") as target:
        while chunk := source.read(_CHUNK):
            target.write(chunk)


def _trunk_of(member: MemberSpec, tower: str | None, weights: Path | None) -> Trunk:
    """Return the trunk of a member, from where the user or the bundle says."""
    network = member.classifier
    if weights:
        return open_trunk(network, weights)
    origin = member.tower
    if tower or origin:
        # A folder's name says nothing of where it lies on this machine.
        if not tower and origin and "/" not in origin.name:
            raise UserError(
                f"the trunk of this bundle came from a local folder, {origin.name}; give --tower "
                "local-dir:FOLDER."
            )
        resolved = resolve_tower(
            tower or f"{HUB}{origin.name if origin else ''}",
            pretrained=True,
            user_args=network.model_args,
            user_preprocess={
                key: getattr(network.preprocess, key) for key in ("size", "mean", "std")
            },
        )
        assert resolved.weights is not None
        return open_trunk(network, resolved.weights)
    return open_trunk(network, pretrained_file(network))


def _write_trunk(trunk: Trunk, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_tensors({name: tensor.contiguous() for name, tensor in trunk.state.items()}, file)


def _check(file: Path, expected: str, member: MemberSpec) -> None:
    if sha256_file(file) != expected:
        raise UserError(
            f"the given weights are not the trunk {_name(member)} of the bundle, because their "
            "SHA-256 differs; give the weights that it was trained with, in the same revision."
        )

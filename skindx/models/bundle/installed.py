"""Installed bundles: found by name, never imported, never changed; and written for others.

A bundle is installed by a distribution with an entry point of the group `skindx.bundles`. Its name
is the bundle's, its value a package, which is located and read as data:

    [project.entry-points."skindx.bundles"]
    ham10000 = "skindx_ham10000"

The package holds `bundle/`, DIGEST with the bundle's digest, `release/` with its evaluation, and
`examples/` where photos may be passed on with it. `skindx publish BUNDLE --as NAME` writes one.
"""

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any

from skindx.core.atomic_files import FolderKind, atomic_folder, sha256_file, write_text
from skindx.core.errors import UserError
from skindx.core.kinds import BOX, how_to_install
from skindx.core.untrusted import MALFORMED, MEGABYTE, parse_json, read_json, read_plain
from skindx.data.origin import RESERVED, parse_licence
from skindx.models.bundle.use_limits import UseLimits
from skindx.taxonomy import Taxonomy

if TYPE_CHECKING:
    from skindx.models.bundle.bundle import Bundle

GROUP = "skindx.bundles"
BUNDLE, DIGEST, RELEASE, EXAMPLES = "bundle", "DIGEST", "release", "examples"
INDEX = "bundle.json"
IN_CHECKOUT = {"ham10000": BOX}
"""Names that a checkout brings: they name these, whether they are installed or not."""
_NAME = re.compile(r"[a-z0-9]+([-_][a-z0-9]+)*")
_LONGEST = 40


class InstalledPath(PosixPath):
    """The folder of an installed bundle, where a name was given for it: it is read, not changed."""

    installed: str = ""
    """The name."""


@dataclass(frozen=True)
class InstalledBundle:
    """A bundle that a distribution brings."""

    name: str
    path: InstalledPath
    distribution: str
    version: str
    digest: str

    @property
    def release(self) -> Path:
        """The evaluation of its release."""
        return self.path.with_name(RELEASE)


def bundle_path(given: "str | os.PathLike[str]") -> Path:
    """Return the folder of a bundle: a path as it is, or that of the installed bundle of a name.

    A text without a slash may be a name; a `Path` is always a path. Raises UserError for a name
    that is also a folder or file here, that nothing installed has, that two distributions have, or
    whose distribution is not sound.
    """
    if not isinstance(given, str) or not is_name(given):
        return given if isinstance(given, Path) else Path(given)
    entries = [entry for entry in _entries() if entry.name == given]
    if os.path.lexists(given):
        if not entries and given not in IN_CHECKOUT:
            return Path(given)
        raise UserError(
            f"{given} is both the name of an installed bundle and a file or folder here; write "
            f"./{given} for the file or folder, or change to another folder for the installed "
            "bundle."
        )
    if not entries:
        raise UserError(_not_installed(given))
    return _one(given, entries).path


def is_name(text: str) -> bool:
    """Return whether a bundle may be installed under a name: small letters, digits, - and _."""
    return bool(_NAME.fullmatch(text)) and len(text) <= _LONGEST


def is_installed(name: str) -> bool:
    """Return whether a distribution brings a bundle of that name, be it sound or not."""
    return any(entry.name == name for entry in _entries())


def installed_bundles() -> tuple[list[InstalledBundle], list[str]]:
    """Return the sound ones by name, and one sentence for each name that cannot be used."""
    entries, sound, broken = _entries(), [], []
    for name in sorted({entry.name for entry in entries}):
        try:
            sound.append(_one(name, [entry for entry in entries if entry.name == name]))
        except UserError as error:
            broken.append(str(error))
    return sound, broken


HEADLINE = {"top1": "top-1", "balanced_accuracy": "balanced accuracy", "auroc": "AUROC"}
"""Figures of a release that a list of bundles shows, by their keys in metrics.json."""


def described(one: InstalledBundle) -> dict[str, Any]:
    """Return what `skindx models --json` prints of an installed bundle, as plain values.

    `figures` are value, low and high of HEADLINE on `images` test images of its release; empty
    where it brings no evaluation of this bundle. No network is loaded. Raises UserError.
    """
    index, file = one.path / INDEX, one.release / "metrics.json"
    raw = parse_json(read_plain(index, 32 * MEGABYTE), str(index))
    use = UseLimits.parse(raw["use"], str(index), expand=False) if raw.get("use") else None
    measured = read_json(file, 64 * MEGABYTE, finite=False) if file.is_file() else {}
    try:
        of = measured["origin"]["bundle_digest"] if measured else ""
        scores = measured["ensemble"] if of == one.digest else {}
        figures = {
            key: {part: float(scores[key][part]) for part in ("value", "low", "high")}
            for key in HEADLINE
            if key in scores
        }
    except MALFORMED:
        raise UserError(
            f"the installed bundle has no figures in {file}; install {one.distribution} again."
        ) from None
    return {
        "name": one.name,
        "digest": one.digest,
        "distribution": one.distribution,
        "version": one.version,
        "folder": str(one.path),
        "classes": Taxonomy.load(one.path / "taxonomy.yaml").keys,
        "licence": use.licence_text if use else None,
        "use": use.sentence if use else None,
        "not_for": list(use.not_for) if use else None,
        "commercial": use.commercial if use else None,
        "figures": figures,
        "images": measured.get("pictures") if figures else None,
    }


def refuse_change(path: Path) -> None:
    """Raise UserError for the folder of an installed bundle, before it is written."""
    if isinstance(path, InstalledPath):
        raise UserError(
            f"the installed bundle {path.installed} cannot be changed; copy its folder {path} and "
            "give the copy."
        )


def beside(path: Path, name: str) -> Path:
    """Return the folder of that name beside a bundle; UserError: nothing is written there."""
    if isinstance(path, InstalledPath):
        raise UserError(
            f"nothing can be written beside the installed bundle {path.installed}; give --out "
            "FOLDER."
        )
    return path.resolve().parent / name


def shown(path: Path) -> str:
    """Return what a bundle is called in records: the name of an installed one, or its path."""
    return path.installed if isinstance(path, InstalledPath) else str(path)


def _entries() -> list[metadata.EntryPoint]:
    """Return the entry points of the group, of two copies of a distribution those of the first.

    Those of the current folder do not count, nor do packages there: what lies where somebody stands
    is not installed.
    """
    found: dict[tuple[str, str], metadata.EntryPoint] = {}
    for distribution in metadata.distributions(path=_places()):
        for entry in distribution.entry_points:
            if entry.group == GROUP:
                found.setdefault((entry.name, distribution.name), entry)
    return list(found.values())


def _places() -> list[str]:
    """Return where modules are looked for, without the folder that Python may have put first."""
    first = "" if sys.flags.safe_path else sys.path[0]
    here = bool(first) and Path(first).resolve() == Path.cwd()
    return [place for place in sys.path[here:] if place]


def _not_installed(name: str) -> str:
    names = sorted({entry.name for entry in _entries()})
    there = f"installed: {', '.join(names)}" if names else "none is installed"
    advice = "give the path of a bundle, or install the distribution that brings it"
    if name in IN_CHECKOUT:
        advice = how_to_install(IN_CHECKOUT[name])
    missing = f"bundle {name} does not exist: no folder here and no installed bundle has this name"
    return f"{missing} ({there}); {advice}."


def _one(name: str, entries: list[metadata.EntryPoint]) -> InstalledBundle:
    """Return the bundle of a name. Raises UserError for two distributions and a broken one."""
    brought = [entry.dist for entry in entries if entry.dist]
    if len(brought) > 1:
        names = " and ".join(sorted(f"{one.name} {one.version}" for one in brought))
        raise UserError(
            f"the packages {names} both contain a bundle {name}; keep the one that you trust, and "
            "uninstall the others."
        )
    (distribution,) = brought
    package = _located(distribution, entries[0].value)
    of = f"the bundle {name} of {distribution.name} {distribution.version} cannot be used"
    if package is None:
        raise UserError(f"{of}: its package {entries[0].value} is missing; install it again.")
    index, stated = package / BUNDLE / INDEX, package / DIGEST
    if not index.is_file():
        raise UserError(f"{of}: the file {index} is missing; install it again.")
    digest = sha256_file(index)
    expected = read_plain(stated).decode(errors="replace").strip() if stated.is_file() else ""
    if digest != expected:
        raise UserError(
            f"{of}: its bundle has the digest {digest[:16]}, and {DIGEST} has "
            f"{expected[:16] or 'none'}, so it was changed since it was published; install it "
            "again."
        )
    path = InstalledPath(package / BUNDLE)
    path.installed = name
    return InstalledBundle(name, path, distribution.name, distribution.version, digest)


def _located(distribution: metadata.Distribution, package: str) -> Path | None:
    """Return the folder of a package beside its metadata, or where Python finds it; not imported.

    The latter is for an installation from a checkout (editable), which a .pth file points to.
    """
    if not package.isidentifier():  # to locate a module within another would import that one
        return None
    beside = Path(str(distribution.locate_file(package)))
    if (beside / "__init__.py").is_file():
        return beside.resolve()
    spec = PathFinder.find_spec(package, _places())
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]).resolve() if folders else None


_PYPROJECT, _README, _LICENCE = "pyproject.toml", "README.md", "LICENSE"
_FOLDER = FolderKind(
    "a distribution of a bundle", _PYPROJECT, (_README, _LICENCE, "skindx_*", "dist")
)
_ROWS = "rows.parquet"
_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){0,3}")
_SPDX = re.compile(r"(CC0-1\.0|CC-BY(-NC)?(-ND|-SA)?-[1-4]\.\d|MIT|Apache-2\.0)")


def write_distribution(
    bundle: "Bundle", name: str, out: Path, *, version: str, measured: str, rows: bool
) -> Path:
    """Write a distribution of a bundle, from which pip installs it under `name`; return it.

    `measured` is the digest that the evaluation beside the bundle, in release/, is of. Its `rows`
    tell age, sex and site of each image. Raises UserError for a bundle that does not say under
    which licence it may be used, and for one without the evaluation of its release.
    """
    use = _checked(bundle, name, version, measured)
    project = out / _PYPROJECT
    if project.is_file() and GROUP.encode() not in project.read_bytes():
        raise UserError(
            f"the folder {out} has the pyproject.toml of another project; give --out a new or "
            "empty folder."
        )
    package = f"skindx_{name.replace('-', '_')}"
    release, examples = (bundle.path.with_name(part) for part in (RELEASE, EXAMPLES))
    left_out = shutil.ignore_patterns(*([] if rows else [_ROWS]), "report.html", "*.tmp-*")
    with atomic_folder(out, _FOLDER) as folder:
        inside = folder / package
        copy_bundle(bundle, inside / BUNDLE)
        if sha256_file(inside / BUNDLE / INDEX) != bundle.digest:
            raise UserError(
                f"bundle {bundle.path} was changed while it was copied; run the same command again."
            )
        shutil.copytree(release, inside / RELEASE, ignore=left_out)
        if examples.is_dir():
            shutil.copytree(examples, inside / EXAMPLES)
        write_text(inside / DIGEST, f"{bundle.digest}\n")
        write_text(inside / "__init__.py", f'"""The bundle {name}: data, which skindx reads."""\n')
        write_text(folder / _LICENCE, _licence(bundle, name, use))
        write_text(folder / _README, _readme(bundle, name, use))
        write_text(folder / _PYPROJECT, _project(name, package, version, use))
    return out


def copy_bundle(bundle: "Bundle", folder: Path) -> None:
    """Copy the files of a bundle, and those of its evaluation, into a new folder."""
    for file in (INDEX, *bundle.spec.files, *bundle.beside):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.path / file, folder / file)


def _checked(bundle: "Bundle", name: str, version: str, measured: str) -> UseLimits:
    """Return what the bundle may be used for. Raises UserError where it may not be published."""
    if not is_name(name):
        raise UserError(
            f"the name {name!r} is not valid; give at most {_LONGEST} lower-case letters and "
            "digits, with - or _ between them."
        )
    if not _VERSION.fullmatch(version):
        raise UserError(f"the version {version!r} is not valid; give a version such as 1.0.0.")
    use = bundle.spec.use
    if use is None:
        raise UserError(
            f"bundle {bundle.path} has no licence of use, so it cannot be published; add `use:` "
            "with the licence to the settings of the training and pack the bundle again."
        )
    if parse_licence(use.licence) == RESERVED:
        raise UserError(
            f"the licence of bundle {bundle.path} ({use.licence}) does not allow publishing it; "
            "ask the holder of its rights."
        )
    for tower in (one.tower for one in bundle.spec.members if one.tower):
        if not parse_licence(tower.licence).may_redistribute:
            raise UserError(
                f"bundle {bundle.path} has weights of {tower.name} under the licence "
                f"{tower.licence or 'not named'}, which may not allow publishing them; run "
                "`skindx bundle detach` for an archive without these weights."
            )
    if not bundle.evaluation or measured != bundle.digest:
        raise UserError(
            f"the release evaluation of bundle {bundle.path} (digest {bundle.digest[:16]}) "
            f"belongs to the digest {measured[:16]} or has no figures; run `skindx evaluate "
            "BUNDLE DATA --release` again."
        )
    return use


def _licence(bundle: "Bundle", name: str, use: UseLimits) -> str:
    """Return LICENSE: the text that lies beside the bundle, or the licence's name and address."""
    given = bundle.path.with_name(_LICENCE)
    if given.is_file():
        return read_plain(given).decode()
    lines = [f"The bundle {name} is under {use.licence_text}.", use.sentence, use.citation]
    if bundle.spec.detector:
        lines.append(
            "Its detector was trained with ultralytics, which states that such weights are under "
            "the AGPL-3.0."
        )
    return "\n\n".join(line for line in lines if line) + "\n"


def _readme(bundle: "Bundle", name: str, use: UseLimits) -> str:
    """Return README.md: how the bundle is used, and its model card."""
    card = read_plain(bundle.path / "MODEL_CARD.md").decode()
    return (
        f"# {name}, a bundle for skindx\n\n**{use.text}** It is no medical device.\n\n"
        f"```sh\npip install .\nskindx serve {name}\nskindx diagnose {name} photo.jpg\n```\n\n"
        f"Digest: `{bundle.digest}`\n\n{card}"
    )


def _project(name: str, package: str, version: str, use: UseLimits) -> str:
    known = parse_licence(use.licence).id
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", use.licence).strip("-.") or "unnamed"
    licence = known if _SPDX.fullmatch(known) else f"LicenseRef-{plain}"
    return f"""\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "skindx-{name.replace("_", "-")}"
version = "{version}"
description = {json.dumps(use.sentence, ensure_ascii=False)}
readme = "{_README}"
requires-python = ">=3.11"
license = "{licence}"
license-files = ["{_LICENCE}"]

[project.entry-points."{GROUP}"]
{name} = "{package}"

[tool.hatch.build]
dev-mode-dirs = ["."]
ignore-vcs = true

[tool.hatch.build.targets.sdist]
include = ["{package}", "{_README}", "{_LICENCE}"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""

"""Distributions of bundles as pip leaves them in a folder of modules."""

import shutil
from pathlib import Path

from skindx.core.atomic_files import sha256_file

NEVER = "raise AssertionError('a bundle is located, never imported')\n"


def package_bundle(
    site: Path, bundle: Path, name: str = "toy", *, digest: str | None = None
) -> Path:
    """Put the package of a bundle into a folder; return where the bundle lies in it."""
    package = site / f"skindx_{name}"
    shutil.copytree(bundle, package / "bundle")
    (package / "__init__.py").write_text(NEVER)
    stated = sha256_file(bundle / "bundle.json") if digest is None else digest
    (package / "DIGEST").write_text(f"{stated}\n")
    return package / "bundle"


def add_metadata(
    site: Path,
    name: str = "toy",
    *,
    distribution: str = "",
    version: str = "1.0",
    package: str | None = None,
) -> None:
    """Write what says that a distribution brings a bundle."""
    distribution = distribution or f"skindx-{name}"
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    stated = f"Metadata-Version: 2.4\nName: {distribution}\nVersion: {version}\n"
    (info / "METADATA").write_text(stated)
    value = f"skindx_{name}" if package is None else package
    (info / "entry_points.txt").write_text(f"[skindx.bundles]\n{name} = {value}\n")


def install(site: Path, bundle: Path, name: str = "toy") -> Path:
    """Install a bundle under a name into a folder of modules; return where it lies."""
    add_metadata(site, name)
    return package_bundle(site, bundle, name)

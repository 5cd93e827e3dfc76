"""The dataset folder: which one a build may write to, and how it changes from old to new."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from skindx.data.manifest import ISSUES, MANIFEST, Issue, Record, write_issues, write_manifest
from skindx.data.recipe import BuildSettings
from skindx.data.sources import FolderSource, HuggingFaceSource
from skindx.data.store import STORE
from skindx.data.summary import BuildSummary
from skindx.errors import UserError
from skindx.files import write_json
from skindx.taxonomy import Taxonomy

TAXONOMY = "taxonomy.yaml"
RECIPE = "recipe.yaml"
SUMMARY = "summary.json"
_STAGING = ".building"


def check_out(out: Path, settings: BuildSettings) -> None:
    """Raise UserError unless `out` is absent, empty, a dataset, or what a broken build left."""
    if out.is_symlink() or out.exists():
        if not out.is_dir():
            raise UserError(f"{out} is a file; give --out a new or empty folder.")
        names = {entry.name for entry in out.iterdir()}
        begun = {MANIFEST, STORE} & names or any(name.startswith("ledger") for name in names)
        if names and not begun:
            raise UserError(
                f"{out} holds other files ({min(names)}) and no dataset; give --out a new or "
                f"empty folder."
            )
    for source in settings.sources:
        inside = source.path if isinstance(source, FolderSource | HuggingFaceSource) else None
        if inside and out.resolve().is_relative_to(inside.resolve()):
            raise UserError(
                f"{out} lies in the source folder {inside}, so the next build would read it "
                f"as pictures; give --out a folder elsewhere."
            )


def write_dataset(
    out: Path,
    *,
    records: Sequence[Record],
    issues: Sequence[Issue],
    taxonomy: Taxonomy,
    settings: BuildSettings,
    summary: BuildSummary,
) -> None:
    """Write all tables beside the old ones, then put them in place together, the manifest last."""
    staging = out / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        taxonomy.save(staging / TAXONOMY)
        settings.save(staging / RECIPE)
        write_issues(staging, issues)
        write_json(staging / SUMMARY, summary.as_json())
        write_manifest(staging, records)
        for name in (TAXONOMY, RECIPE, ISSUES, SUMMARY, MANIFEST):
            (staging / name).replace(out / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)

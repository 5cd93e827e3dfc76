"""What a take-down means for a bundle: weights cannot forget, so it says what it learned."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from skindx.data.removal.blocklist import Blocked
from skindx.models.bundle import add_provenance, open_bundle

MANIFEST_KEY = "manifest sha256"
LEARNED = "taken down since, but learned from"
FOLDED = "validation pictures learned from"
PERHAPS = "taken down since, perhaps learned from"


def uses(path: Path, entries: Iterable[Blocked]) -> dict[str, str | None]:
    """Return what a bundle did with pictures that were taken down: SHA-256 -> split.

    The split is that of the manifest which the bundle was trained on: it learned from train, was
    chosen by val, measured by test; "" if the picture was not in it. None: the bundle is of an
    older version and its manifest another one, so nobody can tell. From members that were trained
    in folds val was learned from as well. Raises UserError for no bundle.
    """
    bundle = open_bundle(path)
    provenance, seen = bundle.spec.provenance, bundle.seen()
    manifest = provenance.get(MANIFEST_KEY)
    folded = provenance.get(FOLDED, 0) > 0
    found: dict[str, str | None] = {}
    for entry in entries:
        if entry.sha256 in provenance.get(LEARNED, []):
            found[entry.sha256] = "train"
            continue
        split: str | None
        if seen is not None:
            split = seen.get(entry.sha256, "")
        else:
            split = entry.manifests.get(str(manifest))
        found[entry.sha256] = "train" if split == "val" and folded else split
    return found


def record_removal(path: Path, used: Mapping[str, str | None]) -> None:
    """Write into provenance and model card which removed pictures the bundle learned from.

    What is written already is not written again.
    """
    provenance = open_bundle(path).spec.provenance
    facts = {}
    for key, split in ((LEARNED, "train"), (PERHAPS, None)):
        before = provenance.get(key, [])
        listed = sorted({*before, *(sha256 for sha256, of in used.items() if of == split)})
        if listed != before:
            facts[key] = listed
    if facts:
        add_provenance(path, facts)

"""Croissant 1.0: what the published files are and how to read them, checked by mlcroissant."""

import datetime
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.machine import require_extra
from skindx.data.publish.publish_formats import FORMATS
from skindx.data.publish.publish_settings import PublishedFacts, newest
from skindx.data.publish.published_rows import NAMES, SHARD_NAMES, PublishedRow
from skindx.data.typed_rows import column_types
from skindx.taxonomy import Taxonomy

if TYPE_CHECKING:
    import mlcroissant as mlc

CROISSANT = "croissant.json"
_ENCODINGS = {
    ".parquet": "application/x-parquet",
    ".csv": "text/csv",
    ".json": "application/json",
    ".yaml": "application/yaml",
}
_PICTURES, _MANIFEST = "pictures", "manifest"


def import_mlcroissant() -> Any:
    """Return the package. Raises UserError that names the extra when it is absent."""
    require_extra("data", "mlcroissant", purpose="Croissant metadata")
    import mlcroissant

    return mlcroissant


def write_croissant(
    folder: Path,
    *,
    rows: Sequence[PublishedRow],
    taxonomy: Taxonomy,
    facts: PublishedFacts,
    sums: Mapping[str, str],
    limits: Sequence[str],
) -> None:
    """Write `folder`/croissant.json of the files in `sums` (path -> SHA-256), and validate it."""
    mlc = import_mlcroissant()
    day = newest([row.retrieved for row in rows])
    published = [row for row in rows if not row.withheld]
    metadata = mlc.Metadata(
        name=facts.name,
        description=f"{len(published)} images of skin in {len(taxonomy.classes)} classes; "
        f"{len(rows) - len(published)} more are listed without their bytes. Research data, no "
        f"medical device.",
        version=facts.version,
        cite_as=facts.citation,
        url=facts.url or None,
        license=sorted({row.licence_url or row.licence for row in published}) or None,
        date_published=datetime.datetime.fromisoformat(day) if day else None,
        keywords=["dermatology", "skin", "image classification"],
        distribution=_distribution(mlc, folder, facts, sums),
        record_sets=_record_sets(mlc, facts, taxonomy, bool(published)),
        data_limitations=list(limits),
        personal_sensitive_information=[
            "Photographs of human skin. Metadata is removed; images flagged for faces, text or "
            "intimate regions are withheld until a person has decided."
            if facts.audited
            else "Photographs of human skin. Metadata is removed. No program has looked for faces, "
            "text and intimate regions."
        ],
        data_release_maintenance_plan=f"Images are taken down on request: {facts.contact}",
    )
    value = metadata.to_json()
    path = folder / CROISSANT
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n", "utf-8")
    _validate(mlc, path)


def _validate(mlc: "mlc", path: Path) -> None:
    with warnings.catch_warnings():
        # rdflib, which mlcroissant reads with, deprecates what it uses itself.
        warnings.simplefilter("ignore", DeprecationWarning)
        # It raises mlcroissant's ValidationError: that would be our mistake, not a user's.
        mlc.Dataset(jsonld=path)


def _distribution(
    mlc: "mlc", folder: Path, facts: PublishedFacts, sums: Mapping[str, str]
) -> list["mlc.FileObject | mlc.FileSet"]:
    files = [
        mlc.FileObject(
            id=path,
            name=path,
            content_url=path,
            content_size=f"{(folder / path).stat().st_size} B",
            encoding_formats=[_ENCODINGS[Path(path).suffix]],
            sha256=sha256,
        )
        for path, sha256 in sorted(sums.items())
        if Path(path).suffix in _ENCODINGS
    ]
    layout = FORMATS[facts.format]
    images = mlc.FileSet(
        id="picture-files",
        name="picture-files",
        includes=[layout.image_files],
        encoding_formats=[layout.encoding],
    )
    return [*files, images]


def _record_sets(
    mlc: "mlc", facts: PublishedFacts, taxonomy: Taxonomy, any_published: bool
) -> list["mlc.RecordSet"]:
    manifest = mlc.Source(file_object="manifest.parquet")
    sets = [
        mlc.RecordSet(
            id=_MANIFEST,
            name=_MANIFEST,
            description="One record a kept image, also those whose bytes are withheld.",
            key=[f"{_MANIFEST}/sha256"],
            fields=[_field(mlc, _MANIFEST, name, manifest) for name in NAMES if name != "boxes"],
        ),
        mlc.RecordSet(
            id="labels",
            name="labels",
            description="The number and the key of each class.",
            key=["labels/number"],
            fields=[
                mlc.Field(id="labels/number", name="number", data_types=[mlc.DataType.INTEGER]),
                mlc.Field(id="labels/key", name="key", data_types=[mlc.DataType.TEXT]),
            ],
            data=[
                {"labels/number": number, "labels/key": key}
                for number, key in enumerate(taxonomy.keys)
            ],
        ),
    ]
    if FORMATS[facts.format].sharded and any_published:
        shards = mlc.Source(file_set="picture-files")
        sets.append(
            mlc.RecordSet(
                id=_PICTURES,
                name=_PICTURES,
                description="One record a published image, with its bytes.",
                key=[f"{_PICTURES}/sha256"],
                fields=[
                    _field(mlc, _PICTURES, name, shards) for name in SHARD_NAMES if name != "boxes"
                ],
            )
        )
    return sets


def _field(mlc: "mlc", record_set: str, name: str, files: "mlc.Source") -> "mlc.Field":
    kinds = mlc.DataType
    column = column_types(PublishedRow).get(name, "image")
    if record_set == _PICTURES and name == "label":
        column = "int64"
    types = {"image": kinds.IMAGE_OBJECT, "bool": kinds.BOOL, "string": kinds.TEXT}
    data_type = kinds.URL if name.endswith("_url") else types.get(column, kinds.INTEGER)
    transforms = [mlc.Transform(json_path="bytes")] if name == "image" else []
    return mlc.Field(
        id=f"{record_set}/{name}",
        name=name,
        data_types=[data_type],
        source=mlc.Source(
            file_object=files.file_object,
            file_set=files.file_set,
            extract=mlc.Extract(column=name),
            transforms=transforms,
        ),
    )

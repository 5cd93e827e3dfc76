"""Where the images of a recipe come from, by the `kind` of each of its `sources`."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from skindx.core.kinds import Family
from skindx.data.sources.image_source import LocalSource, WebSource

SOURCES = Family(
    "source",
    "skindx.sources",
    {
        "atlas": "skindx.data.sources.atlas:AtlasSource",
        "dicom": "skindx.data.sources.dicom:DicomSource",
        "files": "skindx.data.sources.files:FilesSource",
        "folder": "skindx.data.sources.folder:FolderSource",
        "huggingface": "skindx.data.sources.huggingface:HuggingFaceSource",
        "isic": "skindx.data.sources.isic:IsicSource",
        "isic-folder": "skindx.data.sources.isic:IsicFolder",
        "openverse": "skindx.data.sources.api:OpenverseSource",
        "sidecars": "skindx.data.sources.sidecars:SidecarsSource",
        "table": "skindx.data.sources.url_table:TableSource",
        "wikimedia": "skindx.data.sources.api:WikimediaSource",
    },
)


def _as_folder(raw: Any) -> Any:
    """Take an archive with a path for its download: kind isic is isic-folder then."""
    if isinstance(raw, dict) and "path" in raw and f"{raw.get('kind')}-folder" in SOURCES:
        return {**raw, "kind": f"{raw['kind']}-folder"}
    return raw


if TYPE_CHECKING:
    Source = LocalSource | WebSource
else:
    Source = Annotated[SOURCES.union(), BeforeValidator(_as_folder)]

"""Sources of images: small adapters that all give the same ledger rows."""

from typing import Annotated

from pydantic import Field

from skindx.data.sources.atlas import AtlasSource
from skindx.data.sources.files import FilesSource
from skindx.data.sources.folder import FolderSource
from skindx.data.sources.huggingface import HuggingFaceSource
from skindx.data.sources.isic import IsicSource
from skindx.data.sources.openverse import OpenverseSource
from skindx.data.sources.source import LocalSource, Page, UnreadablePageError, WebSource
from skindx.data.sources.table import TableSource
from skindx.data.sources.wikimedia import WikimediaSource

Source = Annotated[
    AtlasSource
    | FilesSource
    | FolderSource
    | HuggingFaceSource
    | IsicSource
    | OpenverseSource
    | TableSource
    | WikimediaSource,
    Field(discriminator="kind"),
]

__all__ = [
    "AtlasSource",
    "FilesSource",
    "FolderSource",
    "HuggingFaceSource",
    "IsicSource",
    "LocalSource",
    "OpenverseSource",
    "Page",
    "Source",
    "TableSource",
    "UnreadablePageError",
    "WebSource",
    "WikimediaSource",
]

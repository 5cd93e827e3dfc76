"""Where pictures come from: small adapters that all give the same ledger rows."""

from typing import Annotated

from pydantic import Field

from skindx.data.sources.atlas import AtlasSource
from skindx.data.sources.folder import FolderSource

Source = Annotated[AtlasSource | FolderSource, Field(discriminator="kind")]

__all__ = ["AtlasSource", "FolderSource", "Source"]

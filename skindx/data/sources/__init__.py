"""Where pictures come from."""

from skindx.data.sources.folder import FolderSource

Source = FolderSource

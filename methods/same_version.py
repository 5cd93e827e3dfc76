"""A metadata hook: it needs skindx of its own version, and no other."""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Sets the one dependency."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add it; a version is known by now."""
        metadata["dependencies"] = [f"skindx=={metadata['version']}"]

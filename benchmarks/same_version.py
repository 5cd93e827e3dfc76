"""A metadata hook: the lab needs skindx and its kit of methods, both of its own version."""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Sets the two dependencies."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add them; a version is known by now."""
        version = metadata["version"]
        metadata["dependencies"] = [f"skindx=={version}", f"skindx-methods=={version}"]

"""A metadata hook: the lab needs skindx and its kit of methods, both of its own version."""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Sets the two dependencies."""

    def update(self, metadata: dict[str, Any]) -> None:
        here = metadata["version"]  # which is known by now
        metadata["dependencies"] = [f"skindx=={here}", f"skindx-methods=={here}"]

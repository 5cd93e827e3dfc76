"""Publishing: the private dataset becomes a copy that others may have."""

from skindx.data.publish.assemble import Published, publish
from skindx.data.publish.drop import drop, held_in
from skindx.data.publish.facts import PublishSettings

__all__ = ["PublishSettings", "Published", "drop", "held_in", "publish"]

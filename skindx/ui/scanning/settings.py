"""How a server scans: how many wait, for how long what was found is kept, how large photos are."""

from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.scan.wide import WideRule


class ScanServing(Settings):
    """What the server's scans may take."""

    keep_s: float = Field(1800.0, gt=0, le=1e6)
    """A result is deleted so many seconds after the scan ended: long enough to read it and to
    download it, and no longer, since it shows a person's skin."""
    waiting: int = Field(4, ge=1, le=64)
    """Most scans that wait, beside the one at work; one more is refused."""
    per_client: int = Field(2, ge=1, le=64)
    """Most scans of one client that wait or are at work."""
    kept: int = Field(32, ge=1, le=10**6)
    """Most results that are kept at a time; a further one takes the place of the oldest."""
    kept_per_client: int = Field(8, ge=1, le=10**6)
    """Of them, most of one client; a further one takes the place of that client's oldest."""
    workers: int = Field(1, ge=1, le=64)
    """Processes that search: each holds the bundle, and diagnoses must not wait for a scan."""
    longest_s: float = Field(1800.0, gt=0, le=1e6)
    """A scan that takes longer is ended."""
    wide: WideRule = Field(default_factory=WideRule)
    """Which photos of a diagnosis the page offers a scan."""
    most_megapixels: int = Field(200, ge=1, le=2000)
    """Of one photo: its pixels lie on the disk, 4 bytes each, while it is scanned."""

"""The environments of other frameworks, from locked files beside this module.

`uv pip compile --universal --generate-hashes` wrote them from the names in their first lines.
"""

import os
from pathlib import Path

from skindx_bench.harness.environments import PeerEnvironment

_LOCKS = Path(__file__).parent / "locks"

ENVIRONMENTS: dict[str, PeerEnvironment] = {
    # Fabric trains by the torch that all other arms here have.
    "fabric": PeerEnvironment("fabric", _LOCKS / "fabric.txt", sees_ours=True, has_source=True),
    "jax": PeerEnvironment("jax", _LOCKS / "jax.txt", has_source=True),
    "tensorflow": PeerEnvironment("tensorflow", _LOCKS / "tensorflow.txt", has_source=True),
}


def cache_folder() -> Path:
    """Return where environments are kept by default."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "skindx" / "frameworks"

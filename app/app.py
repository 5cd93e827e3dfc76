"""A Gradio Space: page and interface over the bundle beside this file, or that of SKINDX_BUNDLE."""

import os
import sys
from pathlib import Path

from skindx.core.errors import JobError, UserError
from skindx.models.bundle.installed import bundle_path
from skindx.ui.serve import serve


def main() -> int:
    """Serve where the Space expects it; return the exit code."""
    # A Space is shown in a frame of its host's page.
    frames = ("https://huggingface.co",) if "SPACE_ID" in os.environ else ()
    # The host of a Space names it in SPACE_HOST; elsewhere the person who runs it does.
    names = os.environ.get("SKINDX_ALLOWED_HOSTS", "").split(",")
    names += os.environ.get("SPACE_HOST", "").split(",")
    # All visitors of a Space come through its host, as one address.
    per_address = 1000 if "SPACE_ID" in os.environ else None
    given = os.environ.get("SKINDX_BUNDLE") or Path(__file__).with_name("bundle")
    try:
        serve(
            bundle_path(given),
            host=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
            port=int(os.environ.get("GRADIO_SERVER_PORT", "7860")),
            proxy=os.environ.get("SKINDX_PROXY") or None,
            per_address=per_address,
            allowed_hosts=[name for name in names if name],
            frames=frames,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except JobError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

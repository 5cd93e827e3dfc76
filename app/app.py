"""A Gradio Space: the diagnosis page over the bundle beside this file, or in SKINDX_BUNDLE."""

import os
import sys
from pathlib import Path

from skindx.errors import UserError
from skindx.ui.page import serve


def main() -> int:
    """Serve the page where the Space expects it; return the exit code."""
    bundle = os.environ.get("SKINDX_BUNDLE") or Path(__file__).with_name("bundle")
    try:
        serve(
            Path(bundle),
            host=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
            port=int(os.environ.get("GRADIO_SERVER_PORT", "7860")),
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

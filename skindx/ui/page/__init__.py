"""The diagnosis page: photos in, what to do next and what it may be out; a case book if wanted."""

from skindx.ui.page.blocks import build_page
from skindx.ui.serve import serve

__all__ = ["build_page", "serve"]

"""Sphinx settings of the guide: `make docs` builds it, and a warning is an error."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import skindx
from skindx.core.machine import go_offline

go_offline()

project = "skindx"
author = "the skindx contributors"
version = release = skindx.__version__

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md"]
nitpicky = True
smartquotes = False  # it would make a dash of --option

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"skindx {version}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["guide.css"]
pygments_style = "tango"
pygments_dark_style = "native"


def setup(app: Any) -> None:
    """Write the pages that are generated from the code before Sphinx looks for pages."""
    from generators.pages import write_pages

    app.connect("config-inited", lambda *_: write_pages(Path(__file__).parent / "reference"))

"""Sphinx settings of the guide: `make docs` builds it, and a warning is an error."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import skindx
from skindx.core.machine import go_offline

go_offline()

# Kernels of the executed pages need folders to write to, and HOME may be none.
_writable = tempfile.TemporaryDirectory(prefix="skindx-docs-")
for _name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
    os.environ[_name] = str(Path(_writable.name) / _name.lower())
_quiet = Path(os.environ["IPYTHONDIR"]) / "profile_default" / "ipython_kernel_config.py"
_quiet.parent.mkdir(parents=True)
_quiet.write_text('c.IPKernelApp.log_level = "ERROR"', encoding="utf-8")
os.environ |= {"JUPYTER_PLATFORM_DIRS": "1", "YOLO_CONFIG_DIR": _writable.name}

project = "skindx"
author = "the skindx contributors"
version = release = skindx.__version__

extensions = ["myst_nb"]
source_suffix = {".md": "myst-nb"}
exclude_patterns = ["README.md"]
nitpicky = True
smartquotes = False  # it would make a dash of --option

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_execution_show_tb = True
nb_output_stderr = "remove"

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

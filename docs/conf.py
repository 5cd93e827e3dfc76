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


MOVED = {
    "guide": "start:start/install build:howto/build train:howto/train diagnose:howto/diagnose "
    "library:reference/library",
    "howto": "skin10:reference/recipes dicom:howto/clinic fhir:howto/clinic clean:howto/copies "
    "audit:howto/review boxes:howto/review formats:howto/build take-down:howto/publish "
    "ensemble:howto/members towers:howto/members compare:howto/evaluate elsewhere:howto/evaluate "
    "paper:howto/evaluate many-photos:howto/diagnose space:howto/serve scan-results:howto/scan "
    "volumes:howto/scan hardware:howto/bench cluster:clusters/launch exchange:clusters/exchange "
    "hopping:clusters/hopping plan:clusters/plan build-on-a-cluster:clusters/build",
    "explanation": "splits:reference/methods calibration:reference/methods ood:reference/methods "
    "statistics:reference/methods exchanges:clusters/exchange parallel:clusters/forms "
    "second-order:clusters/second-order planning:clusters/plan scale:clusters/build",
    "measured": "gates:measured/refused not-skin:measured/refused "
    "out-of-distribution:measured/refused",
}
"""Folder of the guide of version 0.2 -> page:where it is now."""


def setup(app: Any) -> None:
    """Write old addresses after the build."""
    app.connect("build-finished", _write_old_addresses)


def _write_old_addresses(app: Any, error: Exception | None) -> None:
    for folder, pages in MOVED.items() if error is None and app.builder.name == "html" else ():
        (app.outdir / folder).mkdir(exist_ok=True)
        for page in pages.split():
            old, _, new = page.partition(":")
            (app.outdir / folder / f"{old}.html").write_text(
                f'<!doctype html><title>moved</title><meta http-equiv="refresh" '
                f'content="0; url=../{new}.html"><a href="../{new}.html">{new}</a>\n',
                encoding="utf-8",
            )

"""Styles and scripts inside an HTML page, each allowed by its hash alone."""

import hashlib
from base64 import b64encode
from importlib import resources


def inlined(package: str, name: str) -> str:
    """Return a style or script of a package's templates as part of HTML and of XML alike."""
    text = (resources.files(package) / "templates" / name).read_text(encoding="utf-8")
    return f"/*<![CDATA[*/\n{text}/*]]>*/"


def csp_hash(text: str) -> str:
    """Return the source expression that a Content-Security-Policy allows a text by."""
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()

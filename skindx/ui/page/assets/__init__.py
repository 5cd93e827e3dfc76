"""Styles and scripts of the page."""

from importlib import resources

_STYLES = ("tokens", "shell", "intake", "result", "why", "scan", "book")


def styles() -> str:
    """Return the page's styles, which `top_html` writes into the page: Gradio is given none."""
    return "\n".join(_read(f"{name}.css") for name in _STYLES)


def script(name: str) -> str:
    """Return what runs in the browser for one part of the page."""
    return _read(f"{name}.js")


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")

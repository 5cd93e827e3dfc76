"""The HTML of a synthetic site: plain files that a browser shows and a scraper reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; margin: 2rem auto; max-width: 60rem; }}
figure {{ display: inline-block; margin: 0.5rem; vertical-align: top; width: 16rem; }}
img {{ max-height: 12rem; max-width: 100%; }}
</style>
</head>
<body>
<h1>{title}</h1>
"""
_FOOT = "</body>\n</html>\n"
ROBOTS = "User-agent: *\nDisallow: /private/\n"


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture on a category page; `path` is a URL path such as /pictures/a.jpg."""

    path: str
    caption: str
    licence: str
    creator: str


def slug(label: str) -> str:
    """Return a class key as it stands in a URL."""
    return label.lower().replace("_", "-")


def title(label: str) -> str:
    """Return a class key as a person reads it."""
    return label.replace("_", " ")


def index_page(labels: Sequence[str]) -> str:
    """Return the start page, one `a.category` a class."""
    links = "".join(
        f'<li><a class="category" data-label="{escape(label)}" '
        f'href="category/{slug(label)}.html">{escape(title(label))}</a></li>\n'
        for label in labels
    )
    return _HEAD.format(title="A painted atlas of skin") + f"<ul>\n{links}</ul>\n" + _FOOT


def category_page(label: str, figures: Sequence[Figure], following: str = "") -> str:
    """Return one page of a class; `following` is the file name of its next page."""
    parts = [_HEAD.format(title=escape(title(label)))]
    parts += [_figure(figure) for figure in figures]
    if following:
        parts.append(f'<p><a class="next" href="{following}">next page</a></p>\n')
    parts.append('<p><a href="../index.html">all classes</a></p>\n')
    return "".join(parts) + _FOOT


def _figure(figure: Figure) -> str:
    href = escape(f"..{figure.path}")
    return (
        '<figure class="picture">\n'
        f'<a class="full" href="{href}"><img src="{href}" alt="{escape(figure.caption)}"></a>\n'
        f"<figcaption>{escape(figure.caption)}, "
        f'<span class="licence">{escape(figure.licence)}</span>, '
        f'<span class="creator">{escape(figure.creator)}</span></figcaption>\n'
        "</figure>\n"
    )

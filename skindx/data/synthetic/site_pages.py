"""The HTML of a synthetic site, which a browser shows and a scraper reads, and its server."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError

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
class PageFigure:
    """One image on a category page; `path` is a URL path such as /pictures/a.jpg."""

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


def category_page(label: str, figures: Sequence[PageFigure], following: str = "") -> str:
    """Return one page of a class; `following` is the file name of its next page."""
    parts = [_HEAD.format(title=escape(title(label)))]
    parts += [_figure(figure) for figure in figures]
    if following:
        parts.append(f'<p><a class="next" href="{following}">next page</a></p>\n')
    parts.append('<p><a href="../index.html">all classes</a></p>\n')
    return "".join(parts) + _FOOT


def _figure(figure: PageFigure) -> str:
    full, caption = escape(f"..{figure.path}"), escape(figure.caption)
    return (
        '<figure class="picture">\n'
        f'<a class="full" href="{full}"><img src="{full}" alt="{caption}"></a>\n'
        f"<figcaption>{caption}, "
        f'<span class="licence">{escape(figure.licence)}</span>, '
        f'<span class="creator">{escape(figure.creator)}</span></figcaption>\n'
        "</figure>\n"
    )


class _Quiet(SimpleHTTPRequestHandler):
    """Serve files, list no folders, log nothing."""

    def list_directory(self, path: Any) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


class _SiteServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that hangs up early is no fault of the site."""


@contextmanager
def serve_site(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve `folder` on 127.0.0.1 and yield the origin, such as http://127.0.0.1:43211.

    Port 0 takes a free one. Raises UserError when the folder is absent or the port is taken.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; make the site first.")
    try:
        server = _SiteServer(("127.0.0.1", port), partial(_Quiet, directory=str(folder)))
    except OSError as error:
        raise UserError(
            f"Port {port} cannot be served ({error.strerror}); give another, or 0 for a free one."
        ) from None
    with server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()

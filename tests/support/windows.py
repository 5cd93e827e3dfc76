"""Windows of a browser: their sizes, and what went on behind an open page."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
STORED = "localStorage.length + sessionStorage.length"
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
}


@dataclass(frozen=True)
class Painted:
    """A running page whose answers are made up; `folder` is where its process works."""

    url: str
    folder: Path
    locked: str = ""
    """The same page behind a login."""

    @property
    def uploads(self) -> list[Path]:
        """The files that the server keeps for its users."""
        kept = self.folder.glob("skindx-uploads-*/**/*")
        return [path for path in kept if path.is_file()]

    @property
    def book(self) -> Path:
        return self.folder / "cases.db"


@dataclass
class Seen:
    """An open page, and what went on behind it."""

    page: "Page"
    url: str
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


class Windows:
    """Opens windows beside one that stays open, so that they share its process.

    The process compiles the scripts of the page once: a window in a process of its own takes four
    times as much of a core. Cookies are of one user at a time, so two users have two contexts.
    """

    def __init__(self, browser: "Browser") -> None:
        self._browser = browser
        self._stays: dict[tuple[str, int], Page] = {}
        self._users: dict[str, int] = {}
        """The users of this test's windows, and their contexts' numbers."""

    def open(self, url: str, user: str = "", *, apart: bool = False, **options: Any) -> "Page":
        """Return an empty window from which the URL is asked for by a user, if one is named.

        What is changed in a window that stands `apart`, such as its clock, changes no other.
        """
        looks = {name: options.pop(name, None) for name in ("color_scheme", "reduced_motion")}
        number = self._users.setdefault(user, len(self._users))
        if apart:
            number = -1 - len(self._stays)
        place = json.dumps(DESKTOP | options, sort_keys=True), number
        if place not in self._stays:
            self._stays[place] = self._browser.new_context(**(DESKTOP | options)).new_page()
            self._stays[place].goto(f"{url.rstrip('/')}/none")
        stays = self._stays[place]
        stays.context.clear_cookies()
        if user:
            stays.context.add_cookies([{"name": "user", "value": user, "url": url}])
        with stays.expect_popup() as opened:
            stays.evaluate("() => { window.open('about:blank'); }")
        page = opened.value
        page.emulate_media(**looks)
        return page

    def close(self) -> None:
        """Close what a test opened."""
        self._users.clear()
        for stays in self._stays.values():
            for page in stays.context.pages:
                if page is not stays:
                    page.close()


def reported(findings: list[dict[str, Any]]) -> str:
    return json.dumps(findings, indent=1)

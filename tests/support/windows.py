"""Windows of a browser: their sizes, and what went on behind an open page."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

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


def reported(findings: list[dict[str, Any]]) -> str:
    return json.dumps(findings, indent=1)

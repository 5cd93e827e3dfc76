"""Facts of a published folder beside its rows, so that a card can be rendered again."""

import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError, field_validator

from skindx import __version__
from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.publish.publish_formats import Format
from skindx.data.recipe import BuildSettings
from skindx.data.sources.source_kinds import Source

FACTS = "publish.json"


class PublishSettings(Settings):
    """How a dataset is given away."""

    format: Format = "hub"
    contact: str = Field("", max_length=200)
    """Address for take-down requests: a URL or mail address; "": the recipe's."""
    url: str = Field("", pattern=r"^(https?://\S+)?$")
    """Address of the published folder."""
    version: str = "1.0.0"
    citation: str = ""
    """How to cite the dataset, such as BibTeX; "": by its name."""
    unaudited: bool = False
    """Publish without an audit for faces, text and intimate regions."""
    shard_mb: float = Field(default=400.0, gt=0, le=1e6)
    """Megabytes of images in one shard, about."""

    @field_validator("version", mode="before")
    @classmethod
    def _three_numbers(cls, value: object) -> str:
        if not re.fullmatch(r"\d+\.\d+\.\d+", str(value)):
            raise ValueError("a version is three numbers, such as 1.0.0")
        return str(value)


class PublishedFacts(Settings):
    """Settings and recipe as far as others may know them: no path of the maker's disk."""

    name: str
    format: Format
    contact: str
    url: str
    version: str
    citation: str
    skindx: str
    audited: bool
    shard_bytes: int
    cleaning: dict[str, str]
    """Recipe key -> value: thresholds and shares."""
    stated_licences: tuple[str, ...]
    """Licences that the recipe gives to images whose source names none."""

    @classmethod
    def from_settings(cls, recipe: BuildSettings, settings: PublishSettings) -> "PublishedFacts":
        """Collect the facts. Raises UserError without a contact for take-down requests."""
        contact = settings.contact.strip() or recipe.fetch.contact.strip()
        if "@" not in contact and "://" not in contact:
            raise UserError(
                f"--contact is {contact[:100]!r}, but people must be able to ask for the removal "
                "of an image; give --contact a URL or mail address."
            )
        cleaning = {
            f"{part}.{key}": ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            for part in ("screen", "dedup", "split")
            for key, value in getattr(recipe, part).model_dump(mode="json").items()
        }
        stated = map(_stated_licence, recipe.sources)
        return cls(
            name=recipe.name,
            format=settings.format,
            contact=contact,
            url=settings.url,
            version=settings.version,
            citation=settings.citation
            or f"{recipe.name}, version {settings.version}, a dataset of "
            f"skin images built with skindx {__version__}.",
            skindx=__version__,
            audited=not settings.unaudited,
            shard_bytes=round(settings.shard_mb * 1_000_000),
            cleaning={**cleaning, "groups.radius": str(recipe.groups.radius)},
            stated_licences=tuple(sorted({licence for licence in stated if licence})),
        )

    def write(self, folder: Path) -> None:
        write_json(folder / FACTS, self.model_dump(mode="json"))

    @classmethod
    def read(cls, folder: Path) -> "PublishedFacts":
        """Read a published folder's facts. Raises UserError when it is none."""
        try:
            return cls.model_validate_json((folder / FACTS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(
                f"{folder} was not written by `skindx publish`, because it has no {FACTS}; give a "
                "folder that `skindx publish` wrote."
            ) from None
        except (OSError, ValueError) as error:
            detail = " ".join(str(error).split())[:200]
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False)[0]
                detail = ": ".join([*map(str, first["loc"]), first["msg"]])
            raise UserError(
                f"{folder / FACTS} is damaged ({detail}); run `skindx publish` again."
            ) from None


def _stated_licence(source: Source) -> str:
    """Return the licence that a recipe gives to images of a source that names none.

    Where a source has `default_licence`, its `licence` says where to look for the image's own.
    """
    stated = getattr(source, "default_licence", getattr(source, "licence", ""))
    return stated if isinstance(stated, str) else ""


def newest(dates: Sequence[str]) -> str:
    """Return the day of the newest image (ISO 8601), "" when no source says when.

    It stands for the dataset's date, so that the same dataset always gives the same bytes.
    """
    return max(dates, default="")[:10]

"""The archive of the International Skin Imaging Collaboration: its API, and isic-cli's downloads.

Facts from its source code (ImageMarkup/isic, `isic/core/api/image.py`, `pagination.py`,
`models/base.py`): answers of version 2 hold count, next, previous and results, at most 100 a page;
`next` is a whole URL; licences are CC-0, CC-BY and CC-BY-NC, whose texts are version 4.0 (CC0 1.0);
a public image has one URL for good. The same lesion is always the same patient. `isic image
download` (ImageMarkup/isic-cli, `cli/image.py`, `cli/utils.py`) writes ISIC_….jpg and metadata.csv
with isic_id, attribution, copyright_license and those fields of ImageMarkup/isic-metadata that some
image has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, urljoin

from pydantic import Field, PrivateAttr

from skindx.core.errors import UserError
from skindx.data.ledger import LedgerRow
from skindx.data.placeholders import is_placeholder
from skindx.data.sources.api import ApiSource, Endpoint, number, text
from skindx.data.sources.columns import (
    Columns,
    age_years,
    confirmation,
    described,
    modality_of,
    sex,
    skin_type,
)
from skindx.data.sources.files import FileColumns, TableOfFiles
from skindx.data.sources.folder import visible
from skindx.data.sources.image_source import (
    Page,
    SearchCount,
    SourcePreview,
    UnreadablePageError,
    plain_url,
)
from skindx.data.tables.cells import cell
from skindx.data.tables.fields import LEFT_OUT
from skindx.data.tables.reader import read_table
from skindx.taxonomy import Taxonomy, normalise
from skindx.taxonomy.lexicon import SITES, site_of

_LICENCES = {"CC-0": "CC0 1.0", "CC-BY": "CC BY 4.0", "CC-BY-NC": "CC BY-NC 4.0"}
_LEVELS = tuple(f"diagnosis_{level}" for level in range(5, 0, -1))
_CLINICAL = ("age_approx", "sex", "anatom_site_general", "anatom_site_special")


class IsicSource(ApiSource):
    """Images of the archive; queries are written as in `diagnosis_3:"Melanoma*" AND sex:male`.

    Patient, or else lesion, keeps images together in a split.
    """

    kind: Literal["isic"]
    api: Endpoint = "https://api.isic-archive.com/api/v2/images/search/"
    page_size: int = Field(100, ge=1, le=100)
    label: Literal["search", "diagnosis"] = "search"
    """Use the label of the search, or the most exact diagnosis of each image."""

    def parameters(self, query: str) -> dict[str, str | int]:
        return {"query": query, "limit": self.page_size}

    def images(
        self, result: dict[str, Any], label: str, content: dict[str, Any]
    ) -> Iterator[LedgerRow]:
        isic_id = text(result, "isic_id")
        value = {
            name: text(result, "metadata", part, name)
            for part, names in _API_FIELDS.items()
            for name in names
        }
        code = text(result, "copyright_license")
        attribution = text(result, "attribution")
        ids = (value["patient_id"], value["lesion_id"])
        diagnoses = (value[level] for level in (*_LEVELS, "diagnosis"))
        row = self.row(
            text(result, "files", "full", "url"),
            label if self.label == "search" else next(filter(None, diagnoses), ""),
            f"isic:{isic_id}",
            page_url=urljoin(self.api, f"/images/{isic_id}/") if isic_id else "",
            licence=_LICENCES.get(code, code),
            creator=attribution,
            attribution=attribution,
            group=next((each for each in ids if not is_placeholder(each)), ""),
            confirmed_by=confirmation(value["diagnosis_confirm_type"]),
            caption=described(_clinical(value)),
            skin_type=skin_type(value["fitzpatrick_skin_type"]),
            age=age_years(value["age_approx"].removesuffix("+")),
            sex=sex(value["sex"]),
            site=_site(value),
            modality=modality_of(value["image_type"].casefold()),
        )
        what = _no_photo(value)
        if what and not row.status:
            row = replace(row, status="not-a-photo", detail=f"The archive says that it is {what}.")
        yield row

    def promised(self, content: dict[str, Any]) -> SearchCount | None:
        """Return `count`, which the first answer alone gives."""
        return SearchCount(number(content, "count")) if number(content, "count") else None

    def following(self, page: Page, content: dict[str, Any]) -> str:
        """Return `next`, which must be the API itself."""
        address = text(content, "next")
        url = plain_url(address) if address else ""
        if url is None or (url and url.partition("?")[0].rstrip("/") != self.api.rstrip("/")):
            raise UnreadablePageError(
                "bad-url",
                f"The answer names the next page {address[:200]!r}, which is not part of the API.",
            )
        return url


def _clinical(value: Mapping[str, str]) -> str:
    """Return what the archive says of age, sex and site, as in "age_approx: 55; sex: male"."""
    return "; ".join(f"{name}: {value[name]}" for name in _CLINICAL if value[name])


METADATA = "metadata.csv"
_WRITTEN = ("isic_id", "attribution", "copyright_license")
_SITE_LEVELS = (
    *(f"anatom_site_{n}" for n in range(5, 0, -1)),
    *("anatom_site_special", "anatom_site_general"),
)
_NO_PHOTOS = {
    "image_type": ("rcm", "confocal microscopy, no photo"),
    "image_manipulation": ("synthetic", "a synthetic image"),
}
"""Column -> how a value begins whose image is no photo of skin, and what it is."""
_API_FIELDS = {
    "acquisition": tuple(_NO_PHOTOS),
    "clinical": (
        *("patient_id", "lesion_id", "diagnosis_confirm_type", "fitzpatrick_skin_type"),
        *(*_LEVELS, "diagnosis", "age_approx", "sex", *_SITE_LEVELS),
    ),
}
"""Where an answer has them: as they are now, and as they were (diagnosis, anatom_site_general)."""


def _no_photo(value: Mapping[str, str]) -> str:
    """Return what an image is that is no photo of skin, else ""."""
    for column, (start, what) in _NO_PHOTOS.items():
        if value.get(column, "").casefold().startswith(start):
            return what
    return ""


class _ArchiveColumns(Columns):
    """The columns that isic-cli always writes, and one diagnosis at least."""

    def check(self, path: Path, existing: object) -> None:
        """Raise UserError for a table that isic-cli did not write."""
        names = {str(name) for name in existing} if isinstance(existing, list | tuple) else set()
        lacking = next((name for name in _WRITTEN if name not in names), "")
        if not lacking and not names & {*_LEVELS, "diagnosis"}:
            lacking = "diagnosis_1"
        if lacking:
            raise UserError(
                f"{path} has no column {lacking!r}, which `isic image download` writes; run that "
                "command again, or use `kind: files` in the recipe, where you can name the "
                "columns."
            )


class IsicFolder(TableOfFiles):
    """A folder that `isic image download` wrote: images, and metadata.csv with a line an image.

    A source `isic` with a path is one. Patient and lesion keep images together in a split. The
    label is the most specific diagnosis that the recipe's taxonomy knows, else the most specific
    one. Confocal microscopy and synthetic images are left out, with their reason.
    """

    kind: Literal["isic-folder"]
    path: Path
    """The folder, or its table."""
    deepest: int = Field(5, ge=1, le=5)
    """The last level of diagnosis_1 to diagnosis_5 that counts."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Diagnosis of any level -> label, such as "Melanoma in situ" -> Melanoma; goes before the
    taxonomy."""
    image_type: Literal["dermoscopic", "clinical"] | None = None
    """Take only images of this kind; null: all."""

    _taxonomy: Taxonomy | None = PrivateAttr(None)

    @property
    def name(self) -> str:
        """The archive: its ids of patients and lesions are the same in every download."""
        return "isic"

    @property
    def table(self) -> Path:
        return self.path if self.path.is_file() else self.path / METADATA

    @property
    def known_columns(self) -> FileColumns:
        names = ("creator", "page", "confirmed", "modality", "age", "sex", "site")
        return FileColumns.parse({name: name for name in names})

    def for_taxonomy(self, taxonomy: Taxonomy | None) -> Self:
        """Return the source with the classes that its labels are chosen for."""
        chosen = self.model_copy()
        chosen._taxonomy = taxonomy
        return chosen

    def preview(self) -> SourcePreview:
        """Return what the table says, and whether it lacks what keeps images together."""
        preview = super().preview()
        first = next(self._raw(), {})
        if {"patient_id", "lesion_id"} & first.keys():
            return preview
        note = f"{self.table} names no patient and no lesion, so that a split may divide them."
        return SourcePreview(preview.labels, [*preview.notes, note])

    def lines(self) -> list[dict[str, Any]]:
        files = {path.stem: path.relative_to(self.root).as_posix() for path in self._files()}
        label_of = _label_chooser(self.labels, self._taxonomy, _LEVELS[5 - self.deepest :])
        return [self._line(n, raw, files, label_of) for n, raw in enumerate(self._raw(), start=2)]

    def known(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the ledger's row; patient and lesion bear the archive's own ids."""
        return super().known(line) | {"group": line["group"]}

    def _raw(self) -> Iterator[dict[str, Any]]:
        if self.table.suffix.lower() != ".csv":
            raise UserError(
                f"{self.table} is not a CSV file; set `path` to a folder that isic-cli wrote."
            )
        return read_table(self.table, _ArchiveColumns(label=_WRITTEN[0]), every=True)

    def _files(self) -> Iterator[Path]:
        """Yield the files of the folder and of folders in it; no link to a folder is entered."""
        waiting = [self.root]
        while waiting:
            for entry in visible(waiting.pop()):
                if entry.is_dir():
                    waiting += [] if entry.is_symlink() else [entry]
                else:
                    yield entry

    def _line(
        self,
        number: int,
        raw: Mapping[str, Any],
        files: Mapping[str, str],
        label_of: Callable[[Mapping[str, Any]], str],
    ) -> dict[str, Any]:
        value = {str(key): cell(each) for key, each in raw.items()}
        isic_id, code = value["isic_id"], value["copyright_license"]
        biopsy = value.get("concomitant_biopsy", "").casefold() == "true"
        line: dict[str, Any] = {
            "file": files.get(isic_id, f"{isic_id}.jpg"),
            "label": label_of(value),
            "licence": _LICENCES.get(code, code),
            "creator": value["attribution"],
            "attribution": value["attribution"],
            "page": f"https://api.isic-archive.com/images/{quote(isic_id, safe='')}/",
            "group": "\n".join(filter(None, map(value.get, ("patient_id", "lesion_id")))),
            "skin_type": value.get("fitzpatrick_skin_type", ""),
            "confirmed": value.get("diagnosis_confirm_type") or ("biopsy" if biopsy else ""),
            "modality": value.get("image_type", ""),
            "age": value.get("age_approx", "").removesuffix("+"),
            "sex": value.get("sex", ""),
            "site": _site(value),
        }
        if what := _no_photo(value):
            line[LEFT_OUT] = ("not-a-photo", f"metadata.csv says that it is {what}")
        if self.image_type and modality_of(line["modality"].casefold()) != self.image_type:
            kind = line["modality"] or "nothing"
            line[LEFT_OUT] = ("other-image-type", f"its image_type is {kind}")
        if not isic_id:
            line |= {"file": f"{self.table.name}#{number}", "page": ""}
            line[LEFT_OUT] = ("no-file", "its line has no isic_id")
        return line


def _label_chooser(
    labels: Mapping[str, str], taxonomy: Taxonomy | None, levels: Iterable[str]
) -> Callable[[Mapping[str, Any]], str]:
    """Return what gives a line's label; `levels` are columns, the most specific one first."""
    given = {normalise(diagnosis): label for diagnosis, label in labels.items()}
    columns = (*levels, "diagnosis")
    known: dict[str, bool] = {}

    def is_known(diagnosis: str) -> bool:
        # A diagnosis that the taxonomy leaves out by decision is no less specific class, either.
        if taxonomy and diagnosis not in known:
            decided = bool(taxonomy.why_unmapped(diagnosis))
            known[diagnosis] = decided or taxonomy.recognise(diagnosis) is not None
        return known.get(diagnosis, False)

    def label_of(line: Mapping[str, Any]) -> str:
        named = [line[column] for column in columns if not is_placeholder(line.get(column) or "")]
        for diagnosis in named:
            if normalise(diagnosis) in given:
                return given[normalise(diagnosis)]
            if is_known(diagnosis):
                return str(diagnosis)
        return str(named[0]) if named else ""

    return label_of


def _site(line: Mapping[str, str]) -> str:
    """Return the most specific place that our list has, else what the archive calls it."""
    named = [line[column] for column in _SITE_LEVELS if line.get(column)]
    known = (site for site in map(site_of, named) if site in SITES)
    return next(known, named[-1] if named else "")

"""Which column of a table holds what, and what its words mean."""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.seven_points import Question, answers_text
from skindx.data.origin import Modality
from skindx.data.placeholders import is_placeholder
from skindx.data.tables.archives import is_there
from skindx.data.tables.cells import LONGEST, cell, number_of, split_of, truth
from skindx.taxonomy.lexicon import plain_letters, site_of

LONGEST_CAPTION = 2_000
"""Characters of a caption that are kept."""

_TYPES = {name: number for number, name in enumerate(("I", "II", "III", "IV", "V", "VI"), 1)}
_TYPES |= {str(number): number for number in range(1, 7)}

_DERMOSCOPIC = re.compile(r"derm(at)?os[ck]op|epilumin")
_CLINICAL = re.compile(r"clinic|klinisch|close.?up|overview|macro|camera|phone|photo|tbp")

_CONFIRMED = {
    "histo": "histopathology",
    "histology": "histopathology",
    "histopathology": "histopathology",
    "biopsy": "histopathology",
    "follow up": "follow-up",
    "serial imaging showing no change": "follow-up",
    "confocal": "confocal microscopy",
    "confocal microscopy": "confocal microscopy",
    "confocal microscopy with consensus dermoscopy": "confocal microscopy",
    "consensus": "expert consensus",
    "expert consensus": "expert consensus",
    "single image expert consensus": "expert consensus",
}
"""What data sets say of their labels (HAM10000's dx_type, the ISIC archive), in plain words."""
CONFIRMATIONS = tuple(dict.fromkeys(_CONFIRMED.values()))

_TYPE = re.compile(
    r"(?!-)(?:fst|fitzpatrick|fitz\.?|fototipo|phototype?|hauttyp|skin|type?|[ _-])*"
    r"([1-6]|[IV]+)(?:[.,]0+)?",
    re.IGNORECASE,
)
_AGES = re.compile(
    r"(?:age|years|[ _])*(\d{1,3})[ _]*(?:(?:to|bis|a|à|-|–)[ _]*(\d{1,3})[ _]*(?:years|jahre|y)?"
    r"|\+|(?:or|and|und|et|y)[ _]*(?:above|over|older|more|m[aá]s|plus|mehr|älter))",
    re.IGNORECASE,
)
_TAG = re.compile("<[^<>]*>")
_HIDDEN = re.compile(
    r"<(script|style)\b[^<]*</\1>|<(\w+)[^<>]*\bdisplay: *none\b[^<>]*>[^<>]*</\2>", re.IGNORECASE
)
_SEXES = {
    "female": "f female females woman women girl w weiblich frau fem feminin femme femenino mujer"
    " feminino mulher femminile femmina donna hembra kvinna kvinde vrouw",
    "male": "m male males man men boy mannlich maennlich mann masculin homme masculino hombre"
    " homem maschile maschio uomo varon mand",
    "other": "other diverse divers intersex nonbinary non-binary non binary x o",
}
_SEX_OF = {word: name for name, words in _SEXES.items() for word in words.split()}
_NEEDED = ("label", "file", "url", "image", "key")
"""Fields whose column must be there, also by its default name."""
OLDEST = 120
"""Years."""
LARGE_MM = 7


class Columns(Settings):
    """The columns that an image's row is made of; "" for what the table does not know."""

    label: str = Field("label", min_length=1)
    licence: str = ""
    creator: str = ""
    attribution: str = ""
    page: str = ""
    group: str | tuple[str, ...] = ""
    """Patient, lesion or article, which no split may divide; of several columns, what shares one
    value of any of them stays together."""
    caption: str = ""
    """Free text about the image; it stays in the private dataset and is never published."""
    skin_type: str = ""
    """Fitzpatrick type 1..6 or I..VI, determined by a person; anything else counts as unknown."""
    confirmed: str = ""
    """How the label was confirmed, such as HAM10000's `dx_type`; what is no confirmation, such as
    one person's opinion, counts as none."""

    modality: str = Field("", exclude_if=lambda column: not column)
    """Dermoscopic or clinical, such as the ISIC archive's `image_type`."""
    age: str = Field("", exclude_if=lambda column: not column)
    """Years, 0 to 120, or a range of them, of which the middle counts; anything else is unknown.
    Never published, nor are sex and site."""
    sex: str = Field("", exclude_if=lambda column: not column)
    site: str = Field("", exclude_if=lambda column: not column)
    """Place on the body."""
    answers: Mapping[Question, str | tuple[str, ...]] = Field({}, exclude_if=lambda one: not one)
    """What dermatologists ask, by question: {itches: itch, grew: grew}; yes and no, else unknown.

    Of several columns one yes is enough; a number under `large` is a diameter in millimetres, which
    is large from 7 on. Never published."""
    split: str = Field("", exclude_if=lambda column: not column)
    """The split that the table's makers give each image: train, val (valid), calibration, test."""
    also: Mapping[str, tuple[str, ...]] = Field({}, exclude_if=lambda also: not also)
    """Other names of a column, for tables that lack it: {image: [image_id]}."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names of all columns that must be there."""
        return tuple(column for _, column in self._named())

    def _named(self) -> Iterator[tuple[str, str]]:
        """Yield (field, column) of each column that is set."""
        for field, value in self.model_dump(exclude={"also"}).items():
            for part in value.values() if isinstance(value, Mapping) else (value,):
                columns = (part,) if isinstance(part, str) else part
                yield from ((field, column) for column in columns if column)

    def may_lack(self, field: str) -> bool:
        """Tell whether a column is one that only the default names, and not needed."""
        value = getattr(self, field)
        return field not in _NEEDED and value == type(self).model_fields[field].default

    def check(self, path: Path, existing: object) -> None:
        """Raise UserError for a column that is not among those of the table at `path`."""
        names = [str(name) for name in existing] if isinstance(existing, list | tuple) else []
        for field, column in self._named():
            if column not in names and not self.may_lack(field):
                raise UserError(
                    f"{path} has no column {column!r}; set `columns.{field}` in the recipe to a "
                    f"column of this table: {', '.join(names) or 'none'}."
                )

    def known(self, line: Mapping[str, Any], **defaults: str) -> dict[str, Any]:
        """Return the ledger's fields that a line gives; an empty cell leaves the default."""
        known: dict[str, Any] = dict(defaults)
        for field in ("licence", "creator", "attribution"):
            text = cell(line.get(getattr(self, field)))
            # Of a licence only nothing is nothing: *none* and *unknown* are no permission.
            nothing = not text if field == "licence" else is_placeholder(text)
            known[field] = defaults.get(field, "") if nothing else text
        known["group"] = self._groups(line)
        known["caption"] = described(cell(line.get(self.caption)))
        known["page_url"] = cell(line.get(self.page))
        known["confirmed_by"] = confirmation(cell(line.get(self.confirmed)))
        known["skin_type"] = skin_type(cell(line.get(self.skin_type)))
        known["age"] = _age(cell(line.get(self.age)))
        known["sex"] = sex(cell(line.get(self.sex)))
        site = site_of(cell(line.get(self.site)))
        known["site"] = "" if is_placeholder(site) else site
        known["answers"] = answers_text(
            {str(one): answer(one, self._cells(line, one)) for one in self.answers}
        )
        if split := split_of(cell(line.get(self.split))):
            known["split"] = split
        return known

    def _cells(self, line: Mapping[str, Any], question: Question) -> list[str]:
        named = self.answers[question]
        return [cell(line.get(one)) for one in ((named,) if isinstance(named, str) else named)]

    def _groups(self, line: Mapping[str, Any]) -> str:
        """Return what a line belongs to, one a line; of several columns, with the column's name."""
        if isinstance(self.group, str):
            return " ".join(cell(line.get(self.group)).split("\n"))
        cells = ((column, " ".join(cell(line.get(column)).split())) for column in self.group)
        return "\n".join(f"{column}={text}" for column, text in cells if text)

    def odd_facts(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        """Return the cells that say nothing that is known, and count as unknown, by what is odd."""
        known = {
            f"ages are no years from 0 to {OLDEST}": (self.age, _age),
            "skin types are none of I to VI": (self.skin_type, skin_type),
            "sexes are none of female, male and other": (self.sex, sex),
            "splits are none of train, val, calibration and test": (self.split, split_of),
        }
        odd = {}
        for what, (column, read) in known.items():
            cells = [cell(line.get(column)) for line in lines]
            odd[f"{what} and count as unknown"] = [
                text
                for text in cells
                if not is_placeholder(text) and text != "-1" and read(text) in {None, ""}
            ]
        odd["answers are neither yes nor no and count as unknown"] = [
            text
            for line in lines
            for one in self.answers
            for text in self._cells(line, one)
            if not is_placeholder(text) and not answer(one, [text])
        ]
        ages = [cell(line.get(self.age)) for line in lines]
        odd["ages are ranges, of which the middle counts"] = [
            text for text in ages if age_years(text) is None and middle_age(text) is not None
        ]
        return odd


def described(*texts: str) -> str:
    """Return what a source writes about an image as one line, without repetitions."""
    parts: list[str] = []
    for text in texts:
        plain = " ".join(text.split())[:LONGEST_CAPTION]
        if plain and not any(plain in part for part in parts):
            parts.append(plain)
    return " | ".join(parts)


def plain_text(markup: str) -> str:
    """Return what HTML shows: no tags, and nothing that it hides."""
    return html.unescape(_TAG.sub("", _HIDDEN.sub("", markup[:LONGEST])))


def skin_type(text: str) -> int | None:
    """Return a Fitzpatrick type 1..6, as in III, 3, 3.0, `FST III` and `Type 3`; else None."""
    match = _TYPE.fullmatch(text.strip())
    return _TYPES.get(match[1].upper()) if match else None


def sex(text: str) -> str:
    """Return female, male or other; "" for all else."""
    return _SEX_OF.get(plain_letters(text).strip(), "")


def answer(question: str, texts: Sequence[str]) -> str:
    """Return yes or no; "" for all else, and for a no that other cells do not confirm."""

    def one(text: str) -> bool | None:
        size = number_of(text) if question == "large" else None
        return truth(text) if size is None else size >= LARGE_MM

    said = [one(text) for text in texts]
    return "yes" if True in said else "no" if said and all(one is False for one in said) else ""


def age_years(text: str) -> float | None:
    """Return an age of 0 to 120 years, also with a decimal comma; None for all else."""
    age = number_of(text)
    return age if age is not None and 0 <= age <= OLDEST else None


def middle_age(text: str) -> float | None:
    """Return the middle of a range of at most 20 years, such as 30-39 or AGE_18_TO_29.

    Of an open range, such as 80+, the bound counts; None for all else.
    """
    if match := _AGES.fullmatch(text.strip()):
        first, last = int(match[1]), int(match[2] or match[1])
        if first <= last <= min(OLDEST, first + 20):
            return (first + last) / 2
    return None


def _age(text: str) -> float | None:
    return middle_age(text) if age_years(text) is None else age_years(text)


def confirmation(text: str) -> str:
    """Return how a label was confirmed, in plain words; "" for what confirms nothing."""
    return _CONFIRMED.get(re.sub(r"[\W_]+", " ", text).strip().casefold(), "")


def modality_of(text: str) -> Modality:
    """Return the modality that a cell names, such as the ISIC archive's `image_type`."""
    dermoscopic, clinical = _DERMOSCOPIC.search(text), _CLINICAL.search(text)
    if dermoscopic and clinical:
        return "mixed"
    return "dermoscopic" if dermoscopic else "clinical" if clinical else ""


def stated_modality(lines: Iterable[Mapping[str, Any]], columns: Columns) -> Modality:
    """Return what all lines together say; "" where a line says nothing that is known."""
    words = {cell(line.get(columns.modality)).casefold() for line in lines}
    kinds = {modality_of(text) for text in words}
    if not kinds or "" in kinds:
        return ""
    return kinds.pop() if len(kinds) == 1 else "mixed"


def first_there(path: Path, others: Sequence[Path]) -> Path:
    """Return the first of some paths that is there, else `path`."""
    return next((one for one in (path, *others) if is_there(one)), path)

"""What the columns of an unknown table hold, by their names and by their values."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from skindx.core.text import folded_name
from skindx.data.layouts.folder_contents import TableHead
from skindx.data.layouts.image_places import ImageIndex, ImagePlaces
from skindx.data.placeholders import is_placeholder
from skindx.data.sources.columns import (
    age_years,
    confirmation,
    modality_of,
    sex,
    skin_type,
)
from skindx.data.tables.cells import number_of, split_of, truth
from skindx.taxonomy.label_matches import match

_NAMES = {
    "label": """label labels class classes category diagnosis diagnose diagnostic diagnostico dx
        disease condition pathology klasse krankheit maladie enfermedad""",
    "image": """image images img file files filename picture photo foto bild datei fichier archivo
        path imageid imgid isicid imagename filepath imagepath name""",
    "patient": """patient patientid patientno patientnr pid subject subjectid person personid
        participant participantid case caseid paciente pazient patientin""",
    "lesion": "lesion lesionid laesion lasion lesionnr",
    "age": "age ageapprox agegroup alter edad idade eta patientage",
    "sex": "sex gender geschlecht sexo sesso sexe sexatbirth",
    "site": """site localization localisation location anatomsite anatomsitegeneral bodysite
        bodypart region lokalisation localizacion bodyregion""",
    "skin_type": """skintype fitzpatrick fitzpatricktype fitzpatrickskintype fitzpatrickscale fst
        hauttyp phototype fototipo skintone fitspatrick""",
    "confirmed": """dxtype confirmed confirmation diagnosisconfirmtype histology histologie
        histopathology biopsy biopsed biopsied""",
    "split": "split set subset partition",
    "licence": "licence license copyrightlicense",
    "creator": "creator author photographer",
    "attribution": "attribution credit",
    "page": "url pageurl sourceurl",
    "modality": "imagetype modality",
}
_NAMED = {word: kind for kind, words in _NAMES.items() for word in words.split()}
WHAT = tuple(_NAMES)
"""What a column may hold."""
_HOLDS: Mapping[str, Callable[[str], object]] = {
    "age": age_years,
    "sex": sex,
    "skin_type": skin_type,
    "split": split_of,
    "modality": modality_of,
}
_HISTOLOGY = re.compile("histo|biops")
_WRONG = re.compile(r"wrong|mislabel|incorrect|falsch|discard|reject|exclude[d]?$", re.IGNORECASE)
_NO_PHOTO = re.compile("mask|segment|contour|thumb", re.IGNORECASE)
_SURE = 0.8
"""Share of cells that fit what a column's name says."""
_MOST_CLASSES = 300
_MOSTLY, _DOUBTFUL = 0.7, 2.0
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T].*)?|(19|20)\d{2}")


@dataclass(frozen=True)
class ColumnLook:
    """One column of a table's head."""

    name: str
    cells: tuple[str, ...]
    places: ImagePlaces

    @cached_property
    def said(self) -> list[str]:
        """The cells that say something."""
        return [text for text in self.cells if not is_placeholder(text)]

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(self.said)

    @property
    def kind(self) -> str:
        """What its name says that it holds; "": nothing that is known."""
        return _NAMED.get(_plain(self.name), "")

    def fits(self, kind: str) -> bool:
        """Tell whether the cells hold what a name says."""
        holds = _HOLDS.get(kind)
        said = [text for text in self.said if text != "-1"]
        if holds is None or not said:
            return bool(said)
        if kind == "split" and len(set(said)) < 2:
            return False  # which divides nothing
        return sum(holds(text) not in (None, "") for text in said) >= _SURE * len(said)

    @property
    def repeats(self) -> bool:
        """Tell whether a few values stand in many lines, as classes do."""
        return 2 <= len(self.counts) <= max(2, min(_MOST_CLASSES, len(self.said) // 2))

    @property
    def numbers(self) -> bool:
        return all(number_of(text) is not None for text in self.counts)

    @property
    def truths(self) -> bool:
        """Tell whether each cell is a truth value."""
        return bool(self.counts) and all(truth(text) is not None for text in self.counts)

    @cached_property
    def conditions(self) -> float:
        """The share of cells that name a condition of the lexicon."""
        known = sum(count for text, count in self.counts.items() if match(text))
        return known / len(self.said) if self.said else 0.0

    @property
    def is_image(self) -> bool:
        """Tell whether it names images: its cells are files, and numbers alone only by its name."""
        if self.places.there < 3 or self.places.share < 0.5:
            return False
        if not self.numbers:
            return not _NO_PHOTO.search(self.name)
        written = not any("{:" in pattern for pattern in self.places.patterns)
        named = self.kind == "image" or (written and self.places.share >= _SURE)
        return named and len(self.counts) == len(self.said)

    @property
    def is_benign_or_not(self) -> bool:
        return set(map(folded_name, self.counts)) <= {"benign", "malignant", "indeterminate"}

    @property
    def is_id(self) -> bool:
        """Tell whether its cells look like ids of which some repeat."""
        size, ids = len(self.said), len(self.counts)
        few = ids >= 3 and 1.1 * ids <= size <= 30 * ids
        largest = max(self.counts.values(), default=0) <= max(3, size // 5)
        shaped = all(re.search(r"\d", text) and not _DATE.fullmatch(text) for text in self.counts)
        return few and largest and shaped and not any(map(_is_decimal, self.counts))

    @property
    def wrong(self) -> list[str]:
        """The values that say of their lines that they are wrong."""
        return [text for text in self.counts if _WRONG.search(text) and len(self.counts) < 30]

    @property
    def truth_of_histology(self) -> bool:
        """Tell whether yes and no say that there was histology."""
        return self.truths and bool(_HISTOLOGY.search(folded_name(self.name)))

    @property
    def confirms(self) -> bool:
        return self.truth_of_histology or any(map(confirmation, self.counts))


@dataclass(frozen=True)
class TableLook:
    """The columns of a table."""

    head: TableHead
    columns: tuple[ColumnLook, ...]

    @classmethod
    def from_head(cls, head: TableHead, index: ImageIndex) -> "TableLook":
        """Look at each column that has a name."""
        looks = []
        for name in head.columns:
            if name:
                cells = tuple(head.cells(name))
                looks.append(ColumnLook(name, cells, index.places(cells)))
        return cls(head, tuple(looks))

    def column(self, name: str) -> ColumnLook | None:
        """Return a column by its name, whatever its case."""
        return next(
            (one for one in self.columns if folded_name(one.name) == folded_name(name)), None
        )

    @cached_property
    def images(self) -> list[ColumnLook]:
        """The columns that name images, the best first."""
        found = [one for one in self.columns if one.is_image]
        return sorted(
            found,
            key=lambda one: (
                -round(one.places.share, 1),
                one.kind != "image",
                not any("." in text[-5:] for text in one.said[:1]),
                len(one.said) - len(one.counts),
            ),
        )

    def of_kind(self, kind: str) -> list[ColumnLook]:
        """Return the columns whose name says so and whose cells fit."""
        return [one for one in self.columns if one.kind == kind and one.fits(kind)]

    @cached_property
    def classes(self) -> list[str]:
        """The columns of a one-hot table: 0 and 1, a single 1 in each line, names of conditions."""
        of_ones = [one for one in self.columns if set(map(number_of, one.said)) <= {0.0, 1.0}]
        of_ones = [one for one in of_ones if one.said and one.numbers]
        for chosen in (of_ones, [one for one in of_ones if match(one.name)]):
            sums = [sum(number_of(text) or 0 for text in row)
                    for row in zip(*(one.cells for one in chosen), strict=True)]  # fmt: skip
            named = sum(match(one.name) is not None for one in chosen)
            single = sum(total == 1 for total in sums)
            if len(chosen) > 2 and 2 * named >= len(chosen) and single >= 0.95 * len(sums):
                return [one.name for one in chosen]
        return []

    @cached_property
    def some_classes(self) -> list[str]:
        """The columns of 0 and 1 named as conditions, of which lines may have none."""
        chosen = [one for one in self.columns if one.said and one.numbers and match(one.name)]
        chosen = [one for one in chosen if set(map(number_of, one.said)) <= {0.0, 1.0}]
        return [] if self.classes else [one.name for one in chosen]

    def numbered(self, kind: str) -> list[str]:
        """Return the columns of a hierarchy (diagnosis_1, diagnosis_2 ...), the deepest first."""
        found: dict[str, list[tuple[int, str]]] = {}
        for one in self.columns:
            numbered = re.fullmatch(r"(.*?)[_ ]?(\d)", one.name)
            if numbered and _NAMED.get(_plain(numbered[1])) == kind and not one.numbers:
                found.setdefault(numbered[1], []).append((int(numbered[2]), one.name))
        several = [columns for columns in found.values() if len(columns) > 1]
        return [name for _, name in sorted(several[0], reverse=True)] if len(several) == 1 else []

    @cached_property
    def levels(self) -> list[str]:
        """The columns of a hierarchy of labels."""
        return self.numbered("label")

    @cached_property
    def labels(self) -> list[tuple[float, ColumnLook]]:
        """Return the columns that may be the label, with a score, the best first."""
        scored = []
        for one in self.columns:
            if one.name in self.levels or not one.repeats or one.is_image:
                continue
            named = {"label": 3.0, "": 0.0}.get(one.kind, -3.0)
            if not named and set(_words(one.name)) & set(_NAMES["label"].split()):
                named = 1.5
            if _plain(one.name) in ("target", "malignant", "y") or one.is_benign_or_not:
                named = 1.0
            plain = 0.0 if one.numbers or one.truths else 0.5
            score = named + 3 * one.conditions + plain
            if len(one.said) < _MOSTLY * len(one.cells):
                score = min(score, _DOUBTFUL)  # a label that most images lack
            if score >= 1 or (one.numbers and named > 0):
                scored.append((score, one))
        return sorted(scored, key=lambda pair: -pair[0])


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", folded_name(name))


def _words(name: str) -> list[str]:
    return re.split(r"[\W_]+", name.casefold())


def _is_decimal(text: str) -> bool:
    number = number_of(text)
    return number is not None and not number.is_integer()

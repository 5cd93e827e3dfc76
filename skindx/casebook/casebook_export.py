"""Confirmed cases as a folder that `skindx build` takes in: feedback becomes training data."""

import hmac
from collections.abc import Sequence
from pathlib import Path

import yaml

from skindx.casebook.kept_case import KeptCase
from skindx.core.atomic_files import FolderKind
from skindx.core.errors import UserError
from skindx.core.private_files import private_output, write_private, write_private_csv
from skindx.diagnosis.intake import INTAKE

LICENCE = "private, kept with consent for training this model"
TABLE = "pictures.csv"
RECIPE = "recipe.yaml"
_EXPORT = FolderKind("an export of cases", TABLE, (RECIPE, "pictures"))
_FACTS = tuple(name for name, fact in INTAKE.items() if fact.trains)
_COLUMNS = (
    *("file", "label", "confirmed_by", "group", "licence", "attribution", "lesion"),
    *(*_FACTS, "taken", "consent", "consented"),
)


def export(cases: Sequence[KeptCase], out: Path, key: bytes, *, taxonomy: str | None = None) -> int:
    """Write photos, their table and a recipe to `out`; return the number of photos.

    Only cases are written whose patient agreed to training and whose diagnosis is one of the
    model's classes and says what confirmed it. A build takes each label as true, so neither a
    clinical opinion nor a diagnosis without a stated basis is written. All photos of one patient
    bear one group, so that no split tears them apart. Pseudonyms and notes stay behind, and codes
    made with the case book's `key` stand in their place. Raises UserError where nothing can be
    written.
    """
    confirmed = [case for case in cases if case.is_confirmed and "train" in case.purposes]
    if not confirmed:
        raise UserError(
            f"none of the {len(cases)} cases has both a confirmed class and the patient's consent "
            f"to training{_left_out(cases)}; confirm such cases in the case book and export again."
        )
    _EXPORT.check(out)
    with private_output(out, _EXPORT) as folder:
        rows = [row for case in confirmed for row in _write(case, folder, key)]
        write_private_csv(
            folder / TABLE, _COLUMNS, ([row[name] for name in _COLUMNS] for row in rows)
        )
        source = {"kind": "files", "path": str(out.resolve() / TABLE)}
        recipe = {
            "name": "casebook",
            **({"taxonomy": taxonomy} if taxonomy else {}),
            "sources": [source | {"columns": {"confirmed": "confirmed_by"}}],
        }
        write_private(folder / RECIPE, yaml.safe_dump(recipe, sort_keys=False))
    return len(rows)


def left_out(cases: Sequence[KeptCase]) -> str:
    """Return which confirmed cases an export leaves out and why, in a sentence; "" for none."""
    why = _left_out(cases)
    return f"Left out{why.replace(' (', ': ').rstrip(')')}." if why else ""


def _left_out(cases: Sequence[KeptCase]) -> str:
    opinions = sum(bool(case.confirmed) and case.is_opinion for case in cases)
    unstated = sum(bool(case.confirmed) and not case.confirmed_by for case in cases)
    silent = sum(case.is_confirmed and "train" not in case.purposes for case in cases)
    outside = sum(case.outside is not None for case in cases)
    reasons = [
        f"{count} {what}"
        for count, what in (
            (silent, "confirmed without consent to training"),
            (opinions, "with a clinical opinion that nothing confirmed"),
            (unstated, "with a diagnosis whose basis is not stated"),
            (outside, "with a diagnosis that is no class of the model"),
        )
        if count
    ]
    return f" ({', '.join(reasons)})" if reasons else ""


def _write(case: KeptCase, folder: Path, key: bytes) -> list[dict[str, object]]:
    patient, consented = case.person, case.agreed("train")
    person = f"{case.owner}\n{case.patient}"  # spelled in one way by `all_cases`
    rows: list[dict[str, object]] = []
    for position, jpeg in enumerate(case.photos):
        name = f"pictures/{case.id}-{position}.jpg"
        write_private(folder / name, jpeg)
        rows.append(
            {
                "file": name,
                "label": case.confirmed,
                "confirmed_by": case.confirmed_by,
                "group": _code(key, person),
                "licence": LICENCE,
                "attribution": f"case book, consent of {consented:%Y-%m-%d}",
                "lesion": _code(key, f"{person}\n{case.lesion}"),
                **{name: patient.given.get(name, "") for name in _FACTS},
                "taken": case.diagnosis.photos[position].taken,
                "consent": case.consent,
                "consented": consented.isoformat(timespec="seconds"),
            }
        )
    return rows


def _code(key: bytes, text: str) -> str:
    """Return a code in place of a pseudonym: the same each time, so that exports can be joined.

    Keyed: pseudonyms are short, and a plain hash of one is found by trying all.
    """
    return f"casebook-{hmac.digest(key, text.encode(), 'sha256').hex()[:16]}"

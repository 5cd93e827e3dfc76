"""The detector's crop beside the whole image, by how much of the frame a lesion fills."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blocks.texts import Load, bench_machine, shown, table

Figures = Mapping[str, Mapping[str, Any]]

_ARMS = {
    "whole": "whole image",
    "detector": "detector's crop",
    "drawn": "drawn box's crop",
    "both": "mean of whole image and detector's crop",
    "centre": "crop of the middle",
    "fine": "whole image, twice the resolution",
}
_PAIRS = (
    ("detector", "whole"),
    ("drawn", "whole"),
    ("both", "whole"),
    ("centre", "whole"),
    ("fine", "whole"),
    ("detector", "centre"),
    ("detector", "fine"),
)
_MEASURES = {
    "balanced": "balanced accuracy",
    "auroc": "AUROC",
    "log_loss": "log loss",
    "refused": "refused",
}
_LOW_IS_GOOD = ("log_loss", "refused")
_OF_CLASS = {"sensitivity": "sensitivity", "auroc": "AUROC"}
_BOXES = {
    "share": "lesion's longer side, share of the width: median, 5th and 95th percentile",
    "recall": "box finds the lesion (IoU at least 0.5)",
    "no_box": "no box",
    "in_decoy": "box in the decoy of bare skin",
}
_SHARES = {3: "at a third of the frame", 6: "at a sixth of the frame"}


def ways(load: Load, *, file: str = "crop.json") -> str:
    """Return what boxes find, and what each way of showing the lesion reaches."""
    written = load(file)
    figures = written["figures"]
    places = _places(figures)
    names = {
        **_BOXES,
        **{
            f"{arm}_{measure}": f"{_MEASURES[measure]}: {name}"
            for measure in ("balanced", "auroc")
            for arm, name in _ARMS.items()
        },
        **{f"{arm}_refused": f"refused: {_ARMS[arm]}" for arm in ("whole", "detector")},
    }
    rows = [[name, *_cells(figures, places, key)] for key, name in names.items()]
    costs = ", ".join(
        f"{_ARMS[arm]} {figures[key]['value']:.2f}"
        for arm in _ARMS
        if (key := f"{arm}_cost_times_whole") in figures
    )
    notes = [text for note in written["notes"] for text in ("", f"{note}.")]
    stopped = ["", f"Stopped: {written['partial']}."] if "partial" in written else []
    return "\n".join(
        [
            *(table(_headings(figures, places), [row for row in rows if any(row[1:])]), ""),
            f"Operations over the whole image's: {costs}.",
            *(*stopped, *notes, "", bench_machine(written)),
        ]
    )


def classes(load: Load, *, file: str = "crop.json") -> str:
    """Return the crop minus the whole image class by class, and which classes gain or lose."""
    figures = load(file)["figures"]
    lines = []
    for some in _families(_places(figures)):
        keys = [(of, key) for of in _OF_CLASS for key in _keys(figures, some[0], of)]
        rows = [
            [
                f"{_title(key)}: {_OF_CLASS[of]}",
                _count(figures, some[0], key),
                *_cells(figures, some, f"detector_minus_whole_{of}_{key}"),
            ]
            for of, key in keys
        ]
        lines += [table(["class", "n", *map(_place, some)], rows), ""]
    return "\n".join([*lines, *_verdicts(figures)])


def rivals(load: Load, *, file: str = "crop.json") -> str:
    """Return the paired differences of the ways, and what the crop gains over each of them."""
    figures = load(file)["figures"]
    places = _places(figures)
    rows = []
    for one, other in _PAIRS:
        for measure, name in _MEASURES.items():
            cells = _cells(figures, places, f"{one}_minus_{other}_{measure}")
            rows.append([f"{_ARMS[one]} − {_ARMS[other]}: {name}", *cells])
    lines = [table(["", *map(_place, places)], [row for row in rows if any(row[1:])]), ""]
    for one, other in _PAIRS:
        signs = {
            (measure, where): sign
            for measure in _MEASURES
            for where in places
            if (sign := _sign(figures, f"{where}_{one}_minus_{other}_{measure}")) is not None
        }
        if signs:
            said = _said(signs, _MEASURES, places)
            lines.append(f"- {_ARMS[one]}, over {_ARMS[other]}: {said}.")
    return "\n".join(lines)


def _said(
    signs: Mapping[tuple[str, str], int], names: Mapping[str, str], places: Sequence[str]
) -> str:
    """Say in which places each figure gains, loses or shows nothing, and whether the claim turns.

    It turns where some figure gains somewhere and some figure loses somewhere.
    """
    parts = []
    for word, wanted in (("gains", 1), ("loses", -1), ("not shown", 0)):
        of = {
            where: [name for key, name in names.items() if signs.get((key, where)) == wanted]
            for where in places
        }
        found = [f"{_place(where)} ({', '.join(some)})" for where, some in of.items() if some]
        parts += [f"{word} {', '.join(found)}"] if found else []
    turns = {1, -1} <= set(signs.values())
    return "; ".join(parts) + ("; **the claim turns**" if turns else "")


def _verdicts(figures: Figures) -> Iterator[str]:
    for of, name in _OF_CLASS.items():
        signs: dict[str, dict[str, int]] = {}
        for where in _places(figures):
            here = {}
            for key in _keys(figures, where, of):
                sign = _sign(figures, f"{where}_detector_minus_whole_{of}_{key}")
                here |= {} if sign is None else {_title(key): sign}
            gain, lose = ([key for key in here if here[key] == sign] for sign in (1, -1))
            yield (
                f"- {name}, {_place(where)}: gain: {', '.join(gain) or 'no class'}; "
                f"lose: {', '.join(lose) or 'no class'}."
            )
            for key, sign in here.items():
                signs.setdefault(key, {})[where] = sign
        turned = [key for key, here in signs.items() if {1, -1} <= set(here.values())]
        yield f"- {name}: the claim turns with the size for {', '.join(turned) or 'no class'}."


def _sign(figures: Figures, key: str) -> int | None:
    """Return 1 where the whole interval is a gain, -1 a loss, else 0; None: not measured."""
    if key not in figures:
        return None
    low, high = figures[key]["spread"]
    if key.endswith(_LOW_IS_GOOD):
        low, high = -high, -low
    return 1 if low > 0 else -1 if high < 0 else 0


def _places(figures: Figures) -> list[str]:
    """Return where lesions were seen: as taken, in ever wider frames, and the set with boxes."""
    found = [key.removesuffix("_recall") for key in figures if key.endswith("_recall")]

    def order(where: str) -> tuple[bool, int]:
        return where == "boxes", _times(where) or 0

    return sorted(found, key=order)


def _times(where: str) -> int | None:
    return int(where.removeprefix("times_")) if where.startswith("times_") else None


def _place(where: str) -> str:
    times = _times(where)
    if times is not None:
        return _SHARES.get(times, f"at 1/{times} of the frame")
    return {"taken": "as taken", "boxes": "on the boxes set"}[where]


def _families(places: Sequence[str]) -> Iterator[list[str]]:
    """Yield the places of the bundle's classes, and those of benign and malignant."""
    for has in (lambda where: where != "boxes", lambda where: where == "boxes"):
        some = list(filter(has, places))
        if some:
            yield some


def _keys(figures: Figures, where: str, of: str) -> list[str]:
    start = f"{where}_detector_minus_whole_{of}_"
    return [key.removeprefix(start) for key in figures if key.startswith(start)]


def _count(figures: Figures, where: str, key: str) -> str:
    return str(figures[f"{where}_whole_sensitivity_{key}"]["n"])


def _title(key: str) -> str:
    return key.replace("_", " ")


def _headings(figures: Figures, places: Sequence[str]) -> list[str]:
    return ["", *(f"{_place(where)}, n = {figures[f'{where}_recall']['n']}" for where in places)]


def _cells(figures: Figures, places: Sequence[str], key: str) -> list[str]:
    signed = "_minus_" in key
    found = [figures.get(f"{where}_{key}") for where in places]
    return [shown(figure, signed=signed) if figure else "" for figure in found]

"""The changes as a table for spreadsheets."""

from skindx.core.text import printable
from skindx.data.publish.formats import no_formula
from skindx.scan.compare.comparison import ScanComparison

COLUMNS = (
    "photo_before", "photo_after", "kind", "reasons", "rank_before", "rank_after", "x_before",
    "y_before", "x_after", "y_after", "growth", "growth_low", "growth_high", "p_value",
    "colour_change", "urgent_risk_before", "urgent_risk_after",
    "not_known",
)  # fmt: skip


def lines(comparison: ScanComparison) -> list[list[object]]:
    """Return a row for each lesion of either scan; places are in pixels of the photos."""
    rows = []
    for photo in comparison.photos:
        shrunk = [view.size_wh[0] / view.photo.width for view in (photo.before, photo.after)]
        for change in photo.changes:
            growth, row, after = change.growth, change.before, change.after
            line: list[object] = [
                no_formula(printable(photo.before.photo.name)),
                no_formula(printable(photo.after.photo.name)),
                change.kind,
                "; ".join(change.reasons),
                row and row["rank"],
                after and after["rank"],
                *(round(value / shrunk[0], 1) for value in change.place_before),
                *(round(value / shrunk[1], 1) for value in change.place_after),
                *(
                    (round(value, 4) for value in (growth.value, growth.low, growth.high))
                    if growth
                    else (None,) * 3
                ),
                change.p_value,
                change.colour_change,
                row and row["urgent_risk"],
                after and after["urgent_risk"],
                comparison.after.summary.scope.text,
            ]
            rows.append(line)
    return rows

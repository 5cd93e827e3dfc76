"""A diagnosis in the terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from skindx.diagnosis.record import Diagnosis, percent
from skindx.taxonomy import Urgency

_STYLE: dict[Urgency, str] = {
    "urgent": "bold red",
    "soon": "yellow",
    "routine": "green",
    "unknown": "cyan",
}
_BAR = 20


def render(diagnosis: Diagnosis, console: Console) -> None:
    """Print a diagnosis: next step first, then the candidates, then what they rest on.

    Names come from a bundle, which may be anybody's: they are printed as text, never as markup.
    """
    step, source = diagnosis.next_step, diagnosis.source
    console.print(Text.assemble(("Next step  ", "bold"), (step.advice, _STYLE[step.urgency])))
    console.print(Text(step.because, style="dim"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("may be")
    table.add_column("ICD-10")
    table.add_column("urgency")
    table.add_column("probability")
    for each in diagnosis.candidates:
        bar = "█" * round(each.probability * _BAR)
        table.add_row(
            Text(each.name),
            Text(each.icd10 or "–"),
            Text(each.urgency, style=_STYLE[each.urgency]),
            Text(f"{percent(each.probability):>6} {bar}"),
        )
    console.print(table)
    console.print(Text(diagnosis.agreement))
    for photo in diagnosis.photos:
        console.print(Text(photo.boxes_found))
        for box in photo.boxes or ():
            corners = f"({box.x1:.0f}, {box.y1:.0f}) to ({box.x2:.0f}, {box.y2:.0f})"
            console.print(Text(f"  {box.label} {box.score:.0%}, {corners} px"))
    console.print(
        Text(
            f"Bundle {source.name}, version {source.version[:12]}, {source.created}; "
            f"taxonomy {source.taxonomy}: {source.review}.",
            style="dim",
        )
    )
    console.print(Text(diagnosis.notice, style="bold"))

"""A diagnosis in the terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from skindx.diagnosis.case import patient_facts, use_of_facts
from skindx.diagnosis.guarantee import guarantee, how_combined, risk_guarantee
from skindx.diagnosis.record import CANNOT_RULE_OUT, Diagnosis, percent
from skindx.diagnosis.scope import knows, lacks, shown_tier
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

    Names come from a bundle, which is untrusted: they are printed as text, never as markup.
    """
    step, source = diagnosis.next_step, diagnosis.source
    if source.learned_from:
        console.print(Text(source.learned_from, style="bold"))
    console.print(Text.assemble(("Next step  ", "bold"), (step.advice, _STYLE[step.urgency])))
    console.print(Text(step.because, style="dim"))
    console.print(Text(CANNOT_RULE_OUT))
    if guaranteed := risk_guarantee(diagnosis):
        console.print(Text(guaranteed, style="dim"))
    if diagnosis.abstained:
        console.print(Text(f"The model does not know. {diagnosis.abstained}", style="bold"))
    console.print(_candidates(diagnosis))
    if sentence := guarantee(diagnosis):
        console.print(Text(sentence, style="dim"))
    console.print(Text(diagnosis.agreement))
    for sentence in (how_combined(diagnosis), diagnosis.mix):
        if sentence:
            console.print(Text(sentence, style="dim"))
    for number, photo in enumerate(diagnosis.photos, 1):
        which = f"Photo {number}: " if len(diagnosis.photos) > 1 else ""
        console.print(Text(which + " ".join((photo.boxes_found, *photo.remarks))))
        for box in photo.boxes or ():
            corners = f"({box.x1:.0f}, {box.y1:.0f}) to ({box.x2:.0f}, {box.y2:.0f})"
            console.print(Text(f"  {box.label}, detector score {box.score:.2f}, {corners} px"))
    if diagnosis.known:
        console.print(
            Text(f"{knows(diagnosis.known)} They are: {', '.join(diagnosis.known)}.", style="dim")
        )
    for sentence in filter(None, (lacks(diagnosis.unknown_urgent), source.expects)):
        console.print(Text(sentence))
    if diagnosis.similar:
        nearest = ", ".join(f"{case.name} ({case.basis})" for case in diagnosis.similar)
        console.print(Text(f"Most similar training images, nearest first: {nearest}."))
    if facts := patient_facts(diagnosis.patient):
        given = "; ".join(f"{name} {value}" for name, value in facts)
        console.print(Text(f"Given: {given}. {use_of_facts(diagnosis.patient)}"))
    console.print(
        Text(
            f"Bundle {source.name}, version {source.version[:12]}, "
            f"digest {source.digest[:16] or 'unknown'}, {source.created}; "
            f"taxonomy {source.taxonomy}: {source.review}.",
            style="dim",
        )
    )
    console.print(Text(diagnosis.notice, style="bold"))


def _candidates(diagnosis: Diagnosis) -> Table:
    """Return the candidates; without set and bars where the model abstains."""
    abstained = bool(diagnosis.abstained)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("", "resembles most" if abstained else "may be", "ICD-10", "urgency"):
        table.add_column(column)
    table.add_column("probability")
    for candidate in diagnosis.candidates:
        tier = shown_tier(diagnosis, candidate)
        bar = "" if abstained else "█" * round(candidate.probability * _BAR)
        table.add_row(
            Text("●" if candidate.in_set and not abstained else " "),
            Text(candidate.name),
            Text(candidate.icd10 or "–"),
            Text(tier, style=_STYLE[tier]) if tier else Text("–"),
            Text(f"{percent(candidate.probability):>6} {bar}"),
            style="dim" if abstained else None,
        )
    return table

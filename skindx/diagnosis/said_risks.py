"""The risk that an answer says: of which conditions it is, and what it is by each photo."""

from skindx.diagnosis.record import Diagnosis
from skindx.diagnosis.record_figures import UrgentRisk
from skindx.texts.catalogue import joined, speaking, text, told_apart


def photo_risks(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the risk by each of several photos alone, in sentences; "" for each without one."""
    risk = said_risk(diagnosis)
    if not (risk and risk.by_photo) or (diagnosis.abstained and not risk.is_reached):
        return ("",) * len(diagnosis.photos)
    key = "photo_risk_soon" if soon_decides(diagnosis) else "photo_risk"
    shown = (told_apart(one, risk.threshold)[0] for one in risk.by_photo)
    return tuple(text(key, risk=one) for one in shown)


def said_risk(diagnosis: Diagnosis) -> UrgentRisk | None:
    """Return the risk that the reason of the next step gives, or else that of urgent conditions."""
    return diagnosis.soon_risk if soon_decides(diagnosis) else diagnosis.urgent_risk


def soon_decides(diagnosis: Diagnosis) -> bool:
    """Tell whether the risk of urgent and soon conditions decided the model's next step."""
    soon, step = diagnosis.soon_risk, diagnosis.next_step
    if soon is None:
        return False
    with speaking(diagnosis.language):
        return because_soon(soon) in joined(step.because, *step.more)


def because_soon(risk: UrgentRisk) -> str:
    """Return that this risk of urgent and soon conditions made it soon, in a sentence."""
    shown, least = told_apart(risk.risk, risk.threshold)
    return text("because_soon", risk=shown, least=least)


def combined(diagnosis: Diagnosis) -> str:
    """Return why the risk is not that of the table, of several photos; "" where it is."""
    risk = said_risk(diagnosis)
    if len(diagnosis.photos) == 1 or risk is None:
        return ""
    if not diagnosis.abstained:
        return joined(text("photos_risk"), text("photos_mean"))
    reached = [n for n, one in enumerate(risk.by_photo, 1) if one >= risk.threshold]
    if not reached or diagnosis.beyond:
        return text("photos_risk") if reached else ""
    key = "photos_soon" if soon_decides(diagnosis) else "photos_urgent"
    alone = text(key, n=len(reached), numbers=[str(n) for n in reached])
    return joined(alone, text("photos_risk") if len(reached) > 1 else "")


def soon_sum(diagnosis: Diagnosis) -> list[str]:
    """Return what the risk is that made an answer soon, in which urgent ones are counted."""
    soon = diagnosis.soon_risk
    if soon is None or not soon_decides(diagnosis):
        return []
    shown, least = told_apart(soon.risk, soon.threshold)
    return [text("decided_soon", risk=shown, least=least)]


def seen_whole(diagnosis: Diagnosis) -> str:
    """Return how many photos the networks saw wholly; "" for none."""
    count = sum(bool(one.square and not one.cut_out) for one in diagnosis.photos)
    return text("seen_whole", n=count) if count else ""

"""What the threshold of the urgent risk guarantees, for page, paper and terminal."""

from skindx.diagnosis.record import Diagnosis


def risk_guarantee(diagnosis: Diagnosis) -> str:
    """Return the guarantee with its confidence, or why there is none.

    Empty for an answer that abstains, since the guarantee is about photos like the calibration
    images, and for a record of an older version.
    """
    risk = diagnosis.urgent_risk
    if risk is None:
        return diagnosis.no_urgent_risk
    if diagnosis.abstained:
        return ""
    whose = "" if risk.group == "all" else f" of {risk.group}"
    return (
        f"The threshold was set on {risk.lesions:,} calibration lesions{whose} with an urgent "
        f"condition: of 100 such lesions, at most {100 * risk.miss_rate:g} are expected below it "
        f"(confidence that it keeps to this rate: {100 * risk.confidence:.0f} %; with 95 % "
        f"confidence at most {100 * risk.bound:.1f} are below it)."
    )

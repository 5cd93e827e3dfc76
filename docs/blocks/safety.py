"""Questions of urgency and figures of groups in an evaluation: what they say, by rule."""

from collections.abc import Mapping, Sequence
from typing import Any

from blocks.texts import Load, cell, complement, number, origin_of, table, whole
from skindx.evaluation.figures import p_equation
from skindx.evaluation.guarantee_scores import PREVALENCES
from skindx.evaluation.questions import TARGET_MISSED, TARGET_OVER_TRIAGE

_QUESTIONS = {"urgent_risk": "urgent", "soon_risk": "urgent or soon"}
_MISSED_STEPS = {"urgent_risk": ("soon", "unknown", "routine"), "soon_risk": ("unknown", "routine")}
"""The next steps with which an image of a question's classes is missed as it is served."""


def urgency(load: Load, *, file: str) -> str:
    """Return both questions side by side: curve, thresholds, predictive values, net benefit."""
    written = load(file)
    questions = {row["key"]: row for row in written["questions"] if row["key"] in _QUESTIONS}
    rows: dict[str, list[str]] = {}

    def put(what: str, figure: str) -> None:
        rows.setdefault(what, []).append(figure)

    reached = []
    for key, question in questions.items():
        risk = written[key]
        put("images of it, others", f"{question['n']}, {question['others']}")
        put("AUROC", number(question["auroc"]))
        for least in (80, 88):
            mean = cell(question[f"partial_auroc_{least}"])
            put(f"mean specificity above {least} % sensitivity", mean)
        for level in risk["levels"] if risk else ():
            target = f"target {whole(level['miss_rate'])}"
            put(f"missed, {target}", cell(level["misses"]["rate"]))
            put(f"over-triage, {target}", cell(level["false_alarms"]["rate"]))
            if level["miss_rate"] == risk["default"]:
                for row in level["predictive"]:
                    at = f"at a prevalence of {whole(row['prevalence'])}, {target}"
                    put(f"PPV, NPV {at}", f"{cell(row['ppv'])}, {cell(row['npv'])}")
        least = next(row for row in question["triage"] if row["at"] == TARGET_MISSED)
        put(f"over-triage of the curve at {whole(TARGET_MISSED)} missed", cell(least["figure"]))
        if risk and risk["steps"]:
            of_it, others = risk["steps"]
            missed = sum(of_it[step] for step in _MISSED_STEPS[key])
            sent = others["n"] - sum(others[step] for step in _MISSED_STEPS[key])
            put("missed by the next steps as served", f"{missed} of {of_it['n']}")
            put("over-triage by them", f"{sent} of {others['n']}")
        better = [row["threshold"] for row in question["decision"] if row["gain"]["low"] > 0]
        put(
            "net benefit above referring all and none, threshold probabilities",
            f"{whole(better[0])} to {whole(better[-1])}" if better else "none",
        )
        reached.append(f"{_QUESTIONS[key]}: {_target(risk)}")
    headings = ["", *(_QUESTIONS[key] for key in questions)]
    lines = [[what, *cells] for what, cells in rows.items() if len(cells) == len(questions)]
    target = (
        f"Asked: at most {whole(TARGET_MISSED)} missed with at most {whole(TARGET_OVER_TRIAGE)} "
        f"over-triage, by a bundle's threshold. {'; '.join(reached)}."
    )
    return "\n".join([table(headings, lines), "", target, "", origin_of(written["origin"])])


def urgent_errors(load: Load, *, file: str, other: str) -> str:
    """Return for clinicians what both errors of *urgent* are, at home and at other cameras."""
    written, elsewhere = load(file), load(other)
    figures = {one["key"]: one["external"] for one in elsewhere["elsewhere"]["changes"]}
    classes = {one["key"]: one for one in elsewhere["elsewhere"]["classes"]}
    rows = []
    for key, name, text in (
        ("urgent_risk", "urgent", "urgent"),
        ("soon_risk", "soon", "urgent or soon"),
    ):
        risk = written[key]
        level = next(row for row in risk["levels"] if row["miss_rate"] == risk["default"])
        missed, alarms = level["misses"]["rate"], level["false_alarms"]["rate"]
        away = (figures[f"{name}_{what}"] for what in ("sensitivity", "specificity"))
        rows += [
            [what, cell(home), cell(complement(there))]
            for what, home, there in zip(
                (f"{text} images that it misses", f"other images that it calls {text}"),
                (missed, alarms),
                away,
                strict=True,
            )
        ]
    melanoma = next(row for row in written["classes"] if row["key"] == "Melanoma")
    rows += [
        [
            "melanomas whose likeliest condition is melanoma",
            cell(melanoma["sensitivity"]),
            cell(classes["Melanoma"]["sensitivity"]["external"]),
        ],
        [
            f"sets for {whole(written['sets']['level'])} that hold the true condition",
            cell(written["sets"]["coverage"]),
            cell(figures["coverage"]),
        ],
        [
            "photos that it refuses as unlike the training images",
            cell(written["ood"]["refused"]),
            cell(figures["refused"]),
        ],
    ]
    served = [one["served"][:3] for one in (written, elsewhere)]
    if all(served):
        rows += [
            [what, *(cell(figure(*each)) for each in served)]
            for what, figure in (
                (
                    "as served: urgent images that are not called urgent, refused ones too",
                    lambda urgent, others, every: complement(urgent["rates"]["urgent"]),
                ),
                (
                    "as served: other images that are called urgent",
                    lambda urgent, others, every: others["rates"]["urgent"],
                ),
                (
                    "as served: photos that it refuses, for whatever reason",
                    lambda urgent, others, every: every["rates"]["none"],
                ),
            )
        ]
    headings = [
        "95 % interval in brackets",
        f"the same camera, {written['pictures']} images",
        f"other cameras, {elsewhere['pictures']} images",
    ]
    return "\n".join(
        [
            table(headings, rows),
            "",
            *_counted(written["served"][:3]),
            "",
            origin_of(written["origin"]),
        ]
    )


def _counted(served: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return both errors of the advice as an answer says them, and what "urgent" is worth."""
    urgent, others, _ = served
    found, raised = (part["rates"]["urgent"]["value"] for part in (urgent, others))
    lines = [
        f"- The advice misses about {100 * (1 - found):.0f} of 100 urgent lesions, and calls about "
        f"{100 * raised:.0f} of 100 other images urgent."
    ]
    for share in PREVALENCES:
        ppv = share * found / (share * found + (1 - share) * raised)
        lines.append(
            f"- Where {100 * share:.0f} of 100 lesions are urgent, about {100 * ppv:.0f} of 100 "
            "that it calls urgent are."
        )
    return lines


def _target(risk: Mapping[str, Any] | None) -> str:
    """Return by which levels, in percent, the target is reached."""
    by = [
        whole(level["miss_rate"])
        for level in (risk["levels"] if risk else ())
        if level["misses"]["rate"]["value"] <= TARGET_MISSED
        and level["false_alarms"]["rate"]["value"] <= TARGET_OVER_TRIAGE
    ]
    return f"reached at the level {' and '.join(by)}" if by else "**missed** at every level"


def groups(load: Load, *, file: str, within: str = "") -> str:
    """Return a row for each group with enough images, and the test of the largest gap."""
    written = load(file)["parts"][within] if within else load(file)
    lines, sentences = [], []
    for attribute in written["breakdowns"]:
        few = [part["value"] for part in attribute["parts"] if part["few"]]
        for part in attribute["parts"]:
            if not part["few"]:
                urgent = part["urgent"]
                lines.append(
                    [
                        f"{attribute['attribute']}: {part['value']}",
                        str(part["n"]),
                        cell(part["top1"]),
                        number(part["urgent_auroc"]) if urgent else "too few",
                        f"{urgent['missed']} of {urgent['n']}: {cell(urgent['rate'])}"
                        if urgent
                        else "too few",
                    ]
                )
        tests = [
            f"{what} {100 * test['gap']:.1f} points, {p_equation(test['p'])}"
            for what, test in (
                ("top-1", attribute["top1_test"]),
                ("missed urgent images", attribute["urgent_test"]),
            )
            if test
        ]
        if tests or few:
            gap = f"largest differences beyond the classes: {'; '.join(tests)}" if tests else ""
            small = f"too few images to say: {', '.join(few)}" if few else ""
            shown = "; ".join(text for text in (gap, small) if text)
            sentences.append(f"- {attribute['attribute']}: {shown}.")
    headings = ["group", "images", "top-1", "AUROC of urgent", "urgent images missed"]
    permutations = {
        test["permutations"]
        for attribute in written["breakdowns"]
        for test in (attribute["top1_test"], attribute["urgent_test"])
        if test
    }
    how = "Intervals hold for all groups of an attribute together"
    if permutations:
        how += f"; p by {max(permutations):,} permutations within class and group"
    return "\n".join([table(headings, lines), "", *sentences, "", f"{how}."])

"""README's table, isic9, and the check for what is out of distribution."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from blocks.texts import Load, bench_machine, cell, named, number, origin_of, refused, whole
from skindx.evaluation.figures import bounds, percent, points
from skindx.metrics import Interval

_EVALUATION = "isic9-evaluation.json"
_CHOICE = "ood-choice.json"
_CAMERA = "ood-other-camera.json"
_HOPPING = "hopping.json"
_MODALITY = "modality.json"
_SOURCES = {
    "ham10000": "HAM10000, other lesions (dermoscopic)",
    "isic9 elsewhere": "isic9 without HAM10000's (dermoscopic)",
    "boxes": "lesion photos with boxes (dermoscopic, changed by their uploader)",
    "other host": "Fitzpatrick17k, the other host (clinical)",
}


def isic9_table(load: Load) -> str:
    """Return accuracy and calibration of each member and the ensemble."""
    written = load(_EVALUATION)
    columns = {"top1": "top-1", "top_k": "top-5", "balanced_accuracy": "balanced accuracy"}
    headings = [*columns.values(), "calibration error"]
    lines = [
        f"| test split: {written['pictures']} images, {written['groups']} groups | "
        + " | ".join(headings)
        + " |",
        "|---" * (len(headings) + 1) + "|",
    ]
    for scores in (*written["members"], written["ensemble"]):
        cells = [cell(scores[key]) for key in columns] + [number(scores["calibration_error"])]
        lines.append(f"| {scores['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def isic9_text(load: Load) -> str:
    """Return the difference of ensemble and member, and what the urgent risk does."""
    written = load(_EVALUATION)
    best = Interval(**written["difference"]["top1"])
    urgent, sets, risk = written["urgent"], written["sets"], written["urgent_risk"]
    lines = [
        f"Ensemble minus {written['difference']['member']}: {points(best.value)} points of top-1, "
        f"paired interval {bounds(best, 'points')}. Of the {urgent['n']} images of urgent classes "
        f"(melanoma, squamous cell carcinoma) {urgent['missed']} get a likeliest class that is not "
        f"urgent: {cell(urgent['rate'])}. Sets for {whole(sets['level'])} hold the true "
        f"class for {cell(sets['coverage'])} and have {sets['size']['value']:.2f} classes.",
        "",
        "| target of the miss rate | urgent images missed | false alarms | confidence |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {whole(level['miss_rate'])} | {cell(level['misses']['rate'])} | "
        f"{cell(level['false_alarms']['rate'])} | {percent(level['confidence'])} |"
        for level in risk["levels"]
    ]
    fitted = f"Fitted on {risk['lesions']} urgent lesions of the calibration split."
    return "\n".join([*lines, "", fitted, "", origin_of(written["origin"])])


def ood_choice(load: Load) -> str:
    """Return what each detector refuses, best first."""
    written = load(_CHOICE)
    models = sorted(written["models"].items(), key=lambda item: -item[1]["merit"])
    best = models[0][1]
    first = ("own", "left out", "painted skin")
    others = [kind for kind in best if kind not in (*first, "merit")]
    headings = [f"{kind} (n = {best[kind]['n']})" for kind in first]
    lines = [f"| detector | {' | '.join(headings)} | worst painted kind |", "|---" * 5 + "|"]
    for name, model in models:
        cells = [refused(model[kind]) for kind in first]
        worst = min(others, key=lambda kind: model[kind]["refused"][0])
        share = whole(model[worst]["refused"][0])
        cells.append("all refused" if share == "100 %" else f"{share} ({worst})")
        lines.append(f"| {name.replace('+', ' + ')} | {' | '.join(cells)} |")
    note = f"The other painted kinds, n = {best[others[0]]['n']} each: {', '.join(others)}."
    return "\n".join([*lines, "", note, "", bench_machine(written)])


def ood_camera(load: Load) -> str:
    """Return what the check of a bundle refuses of its own kind and of other images."""
    written = load(_CAMERA)
    lines = ["| images | n | refused | AUROC |", "|---|---|---|---|"]
    rows = [("own test images", written["own"]), ("photos by another camera", written["others"][0])]
    rows += [(f"painted: {row['against']}", row) for row in written["others"][1:]]
    for name, row in rows:
        auroc = "–" if row is written["own"] else number(named(row["auroc"]))
        lines.append(f"| {name} | {row['n']} | {refused(row)} | {auroc} |")
    (alone, *_), other = written["detectors"], written["others"][0]
    note = (
        f"The detector {alone} alone, which older bundles have, refuses "
        f"{percent(other['refused_by_detector'][0])} of the photos by another camera."
    )
    return "\n".join([*lines, "", note, "", origin_of(written)])


def modality(load: Load) -> str:
    """Return what the check for photos of the other kind refuses, by source."""
    written = load(_MODALITY)
    kinds = tuple(written["models"]["checks"])
    lines = [f"| images | n | {' | '.join(f'{kind} bundle' for kind in kinds)} |"]
    lines.append("|---" * (2 + len(kinds)) + "|")
    for name, shown in _SOURCES.items():
        for view in ("", " changed"):
            rows = [written["figures"][f"{kind} bundle, {name}{view}"] for kind in kinds]
            cells = [cell(named((row["value"], *row["spread"]))) for row in rows]
            lines.append(
                f"| {shown}{view.replace(' ', ', ')} | {rows[0]['n']} | {' | '.join(cells)} |"
            )
    area = written["models"]["auroc"]
    note = (
        "AUROC of dermoscopic sources against the other host: "
        + "; ".join(f"{name} {value:.3f}" for name, value in area.items())
        + "."
    )
    return "\n".join([*lines, "", *written["notes"], "", note, "", bench_machine(written)])


def hopping(load: Load) -> str:
    """Return how members that hop learn beside data-parallel ones."""
    return _arms(load(_HOPPING))


def _arms(written: Mapping[str, Any]) -> str:
    """Return what each arm learns, and its difference to another, both paired over runs."""
    keys = {"balanced_accuracy": "balanced accuracy", "top1": "top-1"}
    lines = [f"| arm | runs | {' | '.join(keys.values())} |", "|---" * (2 + len(keys)) + "|"]
    for name, arm in written["models"].items():
        means = (_mean([run[key] for run in arm["runs"]]) for key in keys)
        lines.append(f"| {name} | {len(arm['runs'])} | {' | '.join(means)} |")
    headings = [f"{what}, points" for what in keys.values()]
    lines += ["", f"| difference | {' | '.join(headings)} |", "|---" * (1 + len(keys)) + "|"]
    pairs = {
        (name, against["baseline"]): None
        for name, arm in written["models"].items()
        for against in arm["against"]
    }
    for arm, baseline in pairs:
        shown = []
        for short in ("balanced", "top1"):
            figure = written["figures"][f"{arm}_minus_{baseline}_{short}"]
            low, high = figure["spread"]
            shown.append(f"{figure['value']:+.1f} [{low:+.1f}, {high:+.1f}]")
        lines.append(f"| {arm} − {baseline} | {' | '.join(shown)} |")
    notes = "\n\n".join(written["notes"][:3])
    return "\n".join([*lines, "", notes, "", bench_machine(written)])


def _mean(values: Sequence[float]) -> str:
    return f"{100 * fmean(values):.1f} % ± {100 * stdev(values):.1f}"

"""The model card of a bundle.

Its sections are those of Mitchell et al. 2019 ("Model cards for model reporting"); what no program
can know is marked as for a person to write.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skindx.core.text import markdown_environment, printable
from skindx.data.manifest import COUNTED, SKIN_TYPES, UNKNOWN, counts_text
from skindx.data.origin import ImageOrigin
from skindx.imaging.photo_gates import RATE
from skindx.models.bundle.bundle_index import (
    CALIBRATION_CLASSES,
    CLASS_CALIBRATION,
    FOLD_TRAINED_IMAGES,
    LEAST_SIDE_PX,
    MANIFEST_SHA256,
    OLD_KEYS,
    PACKED_FROM,
    REMOVED_MAYBE_TRAINED_ON,
    REMOVED_TRAINED_ON,
    TRAINING_COUNTS,
    TRAINING_IMAGES,
    BundleSpec,
    origin_of_bundle,
    origin_of_detector,
    provenance_value,
)
from skindx.models.conformal import ALL
from skindx.models.metadata_head import MetadataSpec
from skindx.models.ood.ood_check import FEWEST, rate_interval
from skindx.models.towers import origin_lines
from skindx.models.urgent_risk import (
    QUESTION_WORDS,
    QUESTIONS,
    Question,
    UrgentRiskRule,
    not_useful,
    why_no_threshold,
)
from skindx.taxonomy import SkinClass, Taxonomy
from skindx.texts.catalogue import retold

_FIGURES = {
    "top1": "top-1",
    "top_k": "top-k",
    "balanced_accuracy": "balanced accuracy",
    "balanced_rule_top1": "top-1 by the balanced rule",
    "balanced_rule_accuracy": "balanced accuracy by the balanced rule",
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "calibration_error": "expected calibration error",
    "classwise_calibration_error": "classwise calibration error",
    "log_loss": "log loss",
    "brier": "Brier score",
}


_TITLES = {
    MANIFEST_SHA256: "SHA-256 of the manifest",
    TRAINING_IMAGES: "training images",
    FOLD_TRAINED_IMAGES: "validation images that members in folds trained on",
    REMOVED_TRAINED_ON: "removed from the dataset after training",
    REMOVED_MAYBE_TRAINED_ON: "removed from the dataset, possibly after training",
    LEAST_SIDE_PX: "shorter side that 95 % of the calibration images reach (px)",
    CLASS_CALIBRATION: "calibration by class",
    CALIBRATION_CLASSES: "calibration images by class, whose mix the probabilities hold for",
    PACKED_FROM: "SHA-256 of the members, settings and data it was packed from",
}


def _card_title(key: str) -> str:
    """Return what the card calls a value of the provenance, also by a key of version 0.1."""
    today = {old: key for key, old in OLD_KEYS.items()}
    return _TITLES.get(today.get(key, key), key)


def model_card(spec: BundleSpec, taxonomy: Taxonomy, metrics: dict[str, Any] | None) -> str:
    """Return the card as Markdown; `metrics` is what `skindx evaluate` measured, if it did."""
    images = origin_of_bundle(spec)
    outlines = origin_of_detector(spec).warning_of_outlines if spec.detector else ""
    warning = images.warning or outlines
    members = [f"{member.name} ({member.classifier.model})" for member in spec.members]
    counted = spec.provenance.get(TRAINING_COUNTS, {})
    why = not_useful_yet(spec, taxonomy.classes, metrics)
    lines = [
        f"# {spec.name}",
        "",
        "An ensemble for images of skin. It is no medical device and gives no diagnosis.",
        f"Taxonomy {taxonomy.name}: {taxonomy.review_note}.",
        "",
        *([f"**{warning}**", ""] if warning else []),
        *([f"**This bundle is not useful yet.** {_safe(' '.join(why))}", ""] if why else []),
        "## Model details",
        "",
        f"- packed {spec.created} by skindx {spec.skindx}",
        f"- members: {', '.join(members)}",
        *([f"- it {_safe(spec.embeddings.lacks)}"] if spec.embeddings else []),
        f"- combined by: {_combined(spec)}",
        f"- detector: {'yes' if spec.detector else 'none'}",
        *_recall(spec),
        f"- weight of the crop around the best box: {spec.fusion.weight if spec.fusion else 0}",
        f"- age, sex and place on the body: {metadata_words(spec.metadata)}",
        f"- similar cases: {_embedding_index(spec)}",
        f"- classes: {', '.join(skin_class.name for skin_class in taxonomy.classes)}",
        *([f"- licence: {_safe(spec.use.licence_text)}"] if spec.use else []),
        *([f"- citation: {_safe(spec.use.citation)}"] if spec.use and spec.use.citation else []),
        f"- contact{'' if spec.use else ', licence, citation'}: {_PERSON}",
        *_section("Intended use", _use(spec, images, counted)),
        *_section("Training data", [f"learned from: {images.words}"]),
        *(f"- {COUNTED[field]}: {_safe(counts_text(counts))}" for field, counts in counted.items()),
    ]
    if not counted:
        lines.append(f"- people, sources and licences: not recorded in this bundle; {_PERSON}")
    lines += [
        f"- {_card_title(key)}: {_plain(value)}"
        for key, value in spec.provenance.items()
        if key != TRAINING_COUNTS
    ]
    lines += origin_lines([member.tower for member in spec.members if member.tower])
    thresholds = [
        f"conformal sets: {_sets(spec)}",
        *urgent_risk_lines(spec.urgent_risk, taxonomy),
        *_threshold_lines(spec.soon_risk, "soon_risk"),
        f"out-of-distribution photos: {_out_of_distribution(spec)}",
        *_modality_lines(spec),
    ]
    lines += _section("Thresholds, set on calibration images", thresholds)
    if missing := missing_parts(spec, taxonomy.classes):
        lines += _section("What could not be fitted", missing)
    if spec.adapted:
        lines += ["", "## Adapted to local images", "", *spec.adapted.card_lines()]
    lines += ["", "## Measured on the test images", ""]
    lines.append(_measured(metrics) if metrics else "Not yet: run `skindx evaluate`.")
    lines += _section("Ethical considerations", _ETHICS)
    lines += _section("Caveats and recommendations", _CAVEATS)
    return "\n".join(lines) + "\n"


_PERSON = "*for a person to write*"
_FEW = 100
"""Fewer training images of a value are named as few."""
_ETHICS = (
    "A missed cancer and a false alarm do different harm: both errors are given above, and the "
    "level of the urgent risk trades one for the other.",
    "Skin types, ages and sexes that the training images lack may be answered worse, and where "
    "they are not known nothing was measured of them.",
    f"Consent and ethics approval of the sources: {_PERSON}",
)
_CAVEATS = (
    "The figures hold for images like the test images. For other cameras, places and people they "
    "are usually worse: measure them with `skindx evaluate --external`, then fit the thresholds "
    "again on local images.",
    "The classes are a closed list: another disease is refused, or given one of these names.",
    "Images that made the bundle and their copies are left out of an evaluation; other images of "
    "the same people are not recognised.",
    "Intervals cover the chance in drawing test images, not that in training again.",
)


def _section(title: str, lines: Iterable[str]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {line}" for line in lines)]


def _use(
    spec: BundleSpec, images: ImageOrigin, counted: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Return intended and other uses; few training images of a group of people are named."""
    few = []
    for field in ("skin_type", "age", "sex"):
        counts = counted.get(field, {})
        if counts.keys() == {UNKNOWN}:
            few.append(f"no known {COUNTED[field]}")
            continue
        values = SKIN_TYPES if field == "skin_type" and counts else counts
        few += [
            f"{COUNTED[field]} {_safe(value)} ({counts.get(value, 0)})"
            for value in values
            if value != UNKNOWN and counts.get(value, 0) < _FEW
        ]
    return [
        *([f"**{_safe(spec.use.sentence)}**"] if spec.use else []),
        f"research on images of this kind: {images.words}; a clinician decides on every person",
        f"users and place in care: {_PERSON}",
        "out of scope: diagnosis or triage without a clinician, conditions that are no class, and "
        "other kinds of images",
        *([f"people with fewer than {_FEW} training images: {', '.join(few)}"] if few else []),
    ]


def not_useful_yet(
    spec: BundleSpec, classes: Sequence[SkinClass], metrics: dict[str, Any] | None = None
) -> tuple[str, ...]:
    """Return why a bundle is not useful yet, in sentences, as its evaluation found.

    Without an evaluation, or one of an older version, the calibration images say how many others
    the threshold of urgent calls urgent.
    """
    if metrics and isinstance(reasons := metrics.get("not_useful"), list):
        return tuple(retold(str(reason), "not_useful_") for reason in reasons)
    counts = provenance_value(spec.provenance, CALIBRATION_CLASSES)
    rule, known = spec.urgent_risk, counts if isinstance(counts, dict) and not spec.adapted else {}
    return not_useful(
        others_urgent=rule.level().sent_on if rule else None,
        images={one.name: known.get(one.key, 0) for one in classes} if known else None,
        urgent=[one.name for one in classes if one.urgency == "urgent"],
    )


def missing_parts(spec: BundleSpec, classes: Sequence[SkinClass]) -> list[str]:
    """Return a line for each part that could not be fitted, with why; none for a whole bundle."""
    lines = []
    if spec.conformal is None:
        lines.append("no conformal sets: the dataset has no calibration images to fit them on")
    if spec.urgent_risk is None:
        follows = "so the next step follows the conformal set"
        lines.append(f"no threshold of the urgent risk: {why_no_threshold(classes)}; {follows}")
    if spec.ood is None and spec.novelty is None:
        lines.append(
            "no check for photos unlike the training images (out of distribution): it takes "
            f"{FEWEST} calibration images, and training images that differ"
        )
    return lines


def _combined(spec: BundleSpec) -> str:
    rules = {"probability": "mean of probabilities", "logit": "mean of logits", "vote": "vote"}
    rule, weights = rules[spec.combination.rule], spec.combination.weights
    return (
        f"{rule}, weights {', '.join(f'{weight:.2f}' for weight in weights)}" if weights else rule
    )


def _measured(metrics: dict[str, Any]) -> str:
    """Return what was measured; an evaluation of an older version lacks the newer figures."""
    template = markdown_environment("skindx.models.bundle").get_template("measured.md.jinja")
    risks = [line for one in QUESTIONS for line in measured_risk_lines(metrics.get(one), one)]
    figures = {key: title for key, title in _FIGURES.items() if metrics["ensemble"].get(key)}
    return template.render(
        m=metrics, figures=figures, risks=risks, interval=interval_text, safe=_safe
    ).rstrip("\n")


def _sets(spec: BundleSpec) -> str:
    fitted = spec.conformal
    if fitted is None:
        return "none, because the dataset has no calibration images"
    text = (
        f"every class of at least {fitted.least_probability:.3f}, for a coverage of "
        f"{fitted.level:.0%}; fitted on {fitted.pictures} images"
    )
    if fitted.urgent and fitted.urgent_level:
        least = fitted.urgent[ALL]
        text += f"; an urgent class from {least:.3f}, for a coverage of {fitted.urgent_level:.0%}"
    if fitted.group_pictures:
        text += f"; thresholds of their own for {', '.join(fitted.group_pictures)}"
    if fitted.urgent_missed:
        missed = fitted.urgent_missed
        text += (
            f"; of the {missed.pictures} of urgent classes {missed.value:.1%} "
            f"[{missed.low:.1%}, {missed.high:.1%}] have no urgent class in their set"
        )
    return text


def _recall(spec: BundleSpec) -> list[str]:
    """Return what the detector finds of each size, where that was measured."""
    if spec.detector_recall is None:
        return []
    bands = [
        f"{band.least_px:.0f} px and more"
        if band.most_px is None
        else f"{band.least_px:.0f} to {band.most_px:.0f} px"
        for band in spec.detector_recall.bands
    ]
    detected = [
        f"{name}: {band.found} of {band.lesions} [{band.recall.low:.1%}, {band.recall.high:.1%}]"
        for name, band in zip(bands, spec.detector_recall.bands, strict=True)
        if band.lesions
    ]
    on = origin_of_detector(spec).measured_on
    what = f"lesions found by the detector on validation images ({on}), by size"
    return [f"- {what}: {'; '.join(detected)}"]


def metadata_words(metadata: MetadataSpec | None) -> str:
    """Return whether answers use age, sex and place, with what that gains."""
    if metadata is None:
        return "not used; no answer depends on them"
    gain, head = metadata.gain, metadata.head
    of = (
        f"{gain.value:.4f} [{gain.low:.4f}, {gain.high:.4f}] of the log loss on {gain.images} "
        f"validation images in {gain.groups} groups, cross-fitted"
    )
    if gain.urgent_auroc:
        change, low, high = gain.urgent_auroc
        of += f"; the AUROC of the urgent risk changes by {change:+.4f} [{low:+.4f}, {high:+.4f}]"
    if head is None or not metadata.rules:
        return f"not used; no answer depends on them (they gain {of})"
    text = f"{', '.join(head.fields)} are used where they are given, never required; they gain {of}"
    if "sex" in head.fields:
        text += (
            f"; by sex alone no probability, nor the urgent risk, moves by more than "
            f"{100 * head.sex_shift:.0f} percentage points, whatever else is given"
        )
    return text


def _embedding_index(spec: BundleSpec) -> str:
    if spec.gallery is None:
        return "none"
    return f"{spec.gallery.pictures} training images, {spec.gallery.shown} of them may be shown"


def _out_of_distribution(spec: BundleSpec) -> str:
    """Return what the check refuses, or that there is none."""
    if spec.ood:
        kinds = " and ".join(detector.kind for detector in spec.ood.detectors)
        images, rate = spec.ood.images, spec.ood.rate
    elif spec.novelty:
        kinds, images, rate = "mahalanobis", spec.novelty.pictures, spec.novelty.rate
    else:
        return "not checked"
    low, high = rate_interval(images)
    return (
        f"refused above the {1 - rate:.1%} quantile of {images} calibration images ({kinds}); of "
        f"photos like these {low:.1%} to {high:.1%} (95 % interval) are then refused"
    )


def _safe(text: str) -> str:
    """Return a text of others, such as a source's name, that stays a text within a table."""
    return printable(text).replace("|", "\\|").replace("<", "&lt;")


def _modality_lines(spec: BundleSpec) -> list[str]:
    if (check := spec.modality) is None:
        return []
    return [
        f"photos that do not seem {check.kind}: refused, with at most {RATE:.1%} of photos like "
        f"the {check.images} calibration images"
    ]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {count}" for key, count in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def urgent_risk_lines(rule: UrgentRiskRule | None, taxonomy: Taxonomy) -> list[str]:
    """Return a line on the score and one for each level."""
    if all(skin_class.urgency != "urgent" for skin_class in taxonomy.classes):
        return ["urgent risk: none, because no class is urgent; answers say nothing of urgency"]
    if rule is None:
        return [
            f"urgent risk: no threshold; {why_no_threshold(taxonomy.classes)}; the next step "
            "follows the conformal set"
        ]
    return _threshold_lines(rule, "urgent_risk")


def _threshold_lines(rule: UrgentRiskRule | None, question: Question) -> list[str]:
    if rule is None:
        return []
    condition, called = QUESTION_WORDS[question]
    lines = [
        f"{condition} risk: the summed probability of the {condition} classes; thresholds fitted "
        f"on {rule.lesions[ALL]} calibration lesions with an {condition} condition, one image "
        f"each; the next step goes by a miss rate of {rule.default:.0%} unless the operator "
        "chooses another"
    ]
    for level in rule.levels:
        promise = rule.promise(level)
        line = (
            f"{called} from a risk of {level.thresholds[ALL]:.4f}: expected miss rate at most "
            f"{level.miss_rate:.0%} (confidence that this threshold keeps to it: "
            f"{promise.confidence:.0%}; with 95% confidence at most {promise.bound:.1%})"
        )
        if level.sent_on:
            sent = level.sent_on
            line += (
                f"; it calls {sent.value:.1%} [{sent.low:.1%}, {sent.high:.1%}] of "
                f"{sent.pictures} calibration images of other classes {called}"
            )
        groups = [group for group in level.thresholds if group != ALL]
        if groups:
            line += f"; thresholds of their own for {', '.join(groups)}"
        lines.append(line)
    return lines


def measured_risk_lines(
    measured: dict[str, Any] | None, question: Question = "urgent_risk"
) -> list[str]:
    """Return what an evaluation measured at each level, as lines of a list."""
    if not measured:
        return []
    condition, called = QUESTION_WORDS[question]
    return [
        f"- at a miss rate of {level['miss_rate']:.0%}: "
        + "; ".join(
            f"{part[count]} of {part['n']} {what}, {interval_text(part['rate'])}"
            for part, count, what in (
                (level["misses"], "missed", f"{condition} images missed"),
                (level["false_alarms"], "raised", f"images of other classes {called}"),
            )
            if part
        )
        for level in measured["levels"]
    ]


def interval_text(value: dict[str, float | None]) -> str:
    """Return a measured figure with its interval, as the card writes it."""
    figures = [value.get(key) for key in ("value", "low", "high")]
    middle, low, high = ("–" if figure is None else f"{figure:.3f}" for figure in figures)
    return f"{middle} [{low}, {high}]"

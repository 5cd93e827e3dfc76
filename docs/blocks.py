"""What stands in each rendered block: tables and sentences out of docs/measured/*.json."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from skindx.bench.intervals.intervals import cells_of, table
from skindx.evaluation.formatting import bounds, decimal, percent, points
from skindx.metrics import Interval

Load = Callable[[str], Mapping[str, Any]]
"""Reads a file of docs/measured by its name."""

_EVALUATION, _INTERVALS = "isic9-evaluation.json", "intervals.json"
_BEFORE_COPIES = "isic9-before-copies.json"
_FAMILIES = "families.json"
_NOT_SKIN = "not-skin.json"
_CHOICE, _CAMERA = "ood-choice.json", "ood-other-camera.json"
_EXCHANGE = "exchange.json"

SPEED: dict[str, dict[str, tuple[str, float | None]]] = {
    "startup": {"help_s": ("`skindx --help` answers", None)},
    "dedup": {
        "pairs_1m_r4_s": ("all pairs within 4 bits among a million hashes, one thread", 3),
        "pairs_200k_r4_s": ("the same among 200,000", 0.3),
        "faiss_200k_r4_s": ("the same by faiss `IndexBinaryFlat`", None),
    },
    "screen": {
        "screen_over_decode": ("screening over the strict decoder alone", 0.667),
        "hash_per_core": ("hashing on one core, decoding included", 2000),
        "hash_over_imagehash": ("hashing over imagehash", None),
    },
    "loader": {
        "loader_over_decode": ("the loader over decoding alone", 0.85),
        "loader_over_imagefolder": ("the loader over torchvision's ImageFolder with v2", 3.5),
        "cache_over_imagefolder": ("the memory-mapped cache over ImageFolder", 20),
    },
    "trainer": {
        "bare_loop_over_step": ("a bare PyTorch loop's step over ours", 0.95),
        "loader_wait_share": ("share of a step that waits for its images", 0.03),
    },
    "exchange": {
        "gtopk_over_fp32": ("gTop-k over the dense exchange in fp32, 4 ranks", 5),
        "gtopk_over_bf16": ("gTop-k over the dense exchange in bf16, 4 ranks", 3),
        "gtopk_over_powersgd4": ("gTop-k over PowerSGD of rank 4, 4 ranks", 2),
        "gtopk_over_topk_p4": ("communication alone: gTop-k over Top-k, 4 ranks", 1.3),
        "gtopk_over_topk_p8": ("communication alone: gTop-k over Top-k, 8 ranks", 1.6),
        "local_ms": ("selection and merges on one core", 45),
        "select_over_memory_limit": ("speed of the selecting pass over the memory's limit", 0.7),
        "fused_over_zero0": ("fused over DeepSpeed's own reduction, the worst case", 1.2),
        "fused_over_best": ("fused over the best fixed grouping, the worst case", 0.98),
        "hierarchical_over_flat": ("two levels over a flat ring, 2 nodes of 2 ranks", 1.2),
    },
    "heads": {
        "shared_over_separate": ("12 heads on features computed once over 12 own runs", 5),
        "cached_over_recomputed": ("features read from the cache over computing them", 20),
    },
    "hop": {
        "hop_over_dense": ("an epoch of all members: hopping over the dense exchange", 3),
        "hop_over_fused": ("hopping over the fused exchange", 3),
        "hop_over_gtopk": ("hopping over gTop-k", None),
        "hop_over_members": ("hopping over one whole member a rank", 0.95),
        "bytes_less_than_fused": ("bytes on all links: the fused exchange over hopping", 10),
        "makespan_over_bound": ("makespan over the open-shop bound", 1.1),
    },
    "serve": {
        "page_12mp_s": ("a 12-megapixel photo from the click to the complete page", 1.5),
        "direct_over_http_cpu": ("processor time of a direct call over the HTTP endpoint's", 0.77),
        "ort_fp32_over_eager": ("ONNX Runtime fp32 over eager PyTorch, the least of three", 2),
        "openvino_bf16_over_eager": ("OpenVINO bf16 over eager, the least of three", 3.2),
        "chosen_over_best": ("the runtime that the server chooses over the fastest", 0.97),
    },
}
"""Bench -> figure -> what it is, and what is asked: at most a time or share, at least all else."""

_AT_MOST = {"makespan_over_bound"}
"""Ratios that are better when they are smaller."""


def headline(load: Load) -> str:
    """Return the one table of README."""
    written, camera, choice = load(_EVALUATION), load(_CAMERA), load(_CHOICE)
    ensemble, urgent, sets = written["ensemble"], written["urgent"], written["sets"]
    level = next(row for row in written["urgent_risk"]["levels"] if row["miss_rate"] == 0.05)
    best = max(written["members"], key=lambda member: member["top1"]["value"])
    chosen = max(choice["models"].values(), key=lambda model: model["merit"])
    own, other = camera["own"], camera["others"][0]
    members = f"ensemble of {len(written['members'])} MobileNetV2"
    rows = (
        (f"top-1 accuracy, {members}", _share(ensemble["top1"])),
        (f"top-1 accuracy, its best member ({best['name']})", _share(best["top1"])),
        ("balanced accuracy, ensemble", _share(ensemble["balanced_accuracy"])),
        ("calibration error, ensemble", _decimal(ensemble["calibration_error"])),
        (f"sets for {_whole(sets['level'])} hold the true class", _share(sets["coverage"])),
        (f"{urgent['n']} urgent images: the likeliest class is not urgent", _share(urgent["rate"])),
        (
            f"the same images missed by the urgent risk (asked: {_whole(level['miss_rate'])})",
            _share(level["misses"]["rate"]),
        ),
        ("price: other images called urgent", _share(level["false_alarms"]["rate"])),
        (f"{own['n']} own test images refused by the OOD check, one member", _refused(own)),
        (f"{other['n']} photos by another camera refused by the same check", _refused(other)),
        (
            f"{chosen['left out']['n']} images of two classes left out of a training, refused",
            _refused(chosen["left out"]),
        ),
    )
    head = f"isic9: {written['pictures']} test images in {written['groups']} groups"
    lines = [f"| {head} | figure, 95 % interval |", "|---|---|"]
    lines += [f"| {what} | {figure} |" for what, figure in rows]
    return "\n".join([*lines, "", _machine(written["origin"])])


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
        cells = [_share(scores[key]) for key in columns] + [_decimal(scores["calibration_error"])]
        lines.append(f"| {scores['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def isic9_splits(load: Load) -> str:
    """Return the same training on the split before copies were joined, and on the one since."""
    columns = {
        "top1": "top-1",
        "balanced_accuracy": "balanced accuracy",
        "macro_f1": "macro F1",
    }
    lines = [
        "| split | test images, groups | "
        + " | ".join(columns.values())
        + " | calibration error |",
        "|---" * (len(columns) + 3) + "|",
    ]
    splits = {"before copies were joined": load(_BEFORE_COPIES), "since": load(_EVALUATION)}
    for name, written in splits.items():
        ensemble = written["ensemble"]
        cells = [_share(ensemble[key]) for key in columns]
        cells.append(_decimal(ensemble["calibration_error"]))
        lines.append(
            f"| {name} | {written['pictures']}, {written['groups']} | " + " | ".join(cells) + " |"
        )
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
        f"urgent: {_share(urgent['rate'])}. Sets for {_whole(sets['level'])} hold the true "
        f"class for {_share(sets['coverage'])} and have {sets['size']['value']:.2f} classes.",
        "",
        "| miss rate asked | urgent images missed | other images called urgent | confidence |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {_whole(level['miss_rate'])} | {_share(level['misses']['rate'])} | "
        f"{_share(level['false_alarms']['rate'])} | {percent(level['confidence'])} |"
        for level in risk["levels"]
    ]
    fitted = f"Fitted on {risk['lesions']} urgent lesions of the calibration split."
    return "\n".join([*lines, "", fitted, "", _machine(written["origin"])])


def coverage(load: Load) -> str:
    """Return how often intervals hold the true figure."""
    written = load(_INTERVALS)
    return table(cells_of(written)) + "\n" + _bench_machine(written)


def ood_choice(load: Load) -> str:
    """Return what each detector refuses, best first."""
    written = load(_CHOICE)
    models = sorted(written["models"].items(), key=lambda item: -item[1]["merit"])
    best = models[0][1]
    whole = ("own", "left out", "painted skin")
    others = [kind for kind in best if kind not in (*whole, "merit")]
    headings = [f"{kind} (n = {best[kind]['n']})" for kind in whole]
    lines = [f"| detector | {' | '.join(headings)} | worst painted kind |", "|---" * 5 + "|"]
    for name, model in models:
        cells = [_refused(model[kind]) for kind in whole]
        worst = min(others, key=lambda kind: model[kind]["refused"][0])
        share = _whole(model[worst]["refused"][0])
        cells.append("all refused" if share == "100 %" else f"{share} ({worst})")
        lines.append(f"| {name.replace('+', ' + ')} | {' | '.join(cells)} |")
    note = f"The other painted kinds, n = {best[others[0]]['n']} each: {', '.join(others)}."
    return "\n".join([*lines, "", note, "", _bench_machine(written)])


def ood_camera(load: Load) -> str:
    """Return what the check of a bundle refuses of its own kind and of other images."""
    written = load(_CAMERA)
    lines = ["| images | n | refused | AUROC |", "|---|---|---|---|"]
    rows = [("own test images", written["own"]), ("photos by another camera", written["others"][0])]
    rows += [(f"painted: {row['against']}", row) for row in written["others"][1:]]
    for name, row in rows:
        auroc = "–" if row is written["own"] else _decimal(_interval(row["auroc"]))
        lines.append(f"| {name} | {row['n']} | {_refused(row)} | {auroc} |")
    (alone, *_), other = written["detectors"], written["others"][0]
    note = (
        f"The detector {alone} alone, which older bundles have, refuses "
        f"{percent(other['refused_by_detector'][0])} of the photos by another camera."
    )
    return "\n".join([*lines, "", note, "", _machine(written)])


def model_families(load: Load) -> str:
    """Return what each network can do, and the reasons of those that cannot."""
    written = load(_FAMILIES)
    stages = list(written["figures"])
    headings = [stage.replace("_", " ") for stage in stages]
    lines = [f"| network | {' | '.join(headings)} |", "|---" * (len(stages) + 1) + "|"]
    reasons: list[str] = []
    for name, row in written["models"].items():
        lines.append(
            f"| `{name}` | {' | '.join(_answer(row[stage], reasons) for stage in stages)} |"
        )
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    whole = sum(all(row[stage] == "yes" for stage in stages) for row in written["models"].values())
    counted = (
        f"{whole} of {len(written['models'])} networks pass every stage. {written['notes'][0]}"
    )
    return "\n".join([counted, "", *lines, "", *notes, "", _bench_machine(written)])


def speed(load: Load) -> str:
    """Return the figures of the benches, each with its spread and what is asked."""
    lines = ["| `skindx bench` | figure | median [25 %, 75 %] | asked | |", "|---|---|---|---|---|"]
    machines: dict[str, list[str]] = {}
    for bench, shown in SPEED.items():
        written = load(f"{bench}.json")
        machines.setdefault(_bench_machine(written), []).append(bench)
        for key, (what, asked) in shown.items():
            figure = written["figures"][key]
            unit = figure["unit"]
            at_most = unit in ("s", "ms", "of a step") or key in _AT_MOST
            met = asked is None or (figure["value"] <= asked) == at_most
            lines.append(
                f"| `{bench}` | {what} | {_median(figure)} | "
                f"{'' if asked is None else ('≤ ' if at_most else '≥ ') + _unit(asked, unit)} | "
                f"{'' if met else '**missed**'} |"
            )
    named = [f"{', '.join(benches)}: {machine}" for machine, benches in machines.items()]
    return "\n".join([*lines, "", *(line for note in named for line in (note, ""))])


_CLEAN = {"isic9": "clean-isic9.json", "photos with boxes": "clean-boxes.json"}


def clean(load: Load) -> str:
    """Return the recall by kind of copy, false links, and every method's average precision."""
    written = {name: load(file) for name, file in _CLEAN.items()}
    lines = [f"| copies found | {' | '.join(written)} |", "|---" * (len(written) + 1) + "|"]
    kinds = [key for key in next(iter(written.values()))["figures"] if "copies_recall_" in key]
    rows = [(kind.removeprefix("copies_recall_").replace("_", " "), kind) for kind in kinds]
    rows += [("**false links**, of all links", "false_links")]
    rows += [("images misled by an overlay", "images_misled_by_overlays")]
    for name, key in rows:
        cells = [_counted(one["figures"][key]) for one in written.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| method | " + " | ".join(f"{name}: copies, AP" for name in written) + " |"]
    lines += ["|---" * (len(written) + 1) + "|"]
    methods = dict.fromkeys(
        name
        for one in written.values()
        for name, model in one["models"].items()
        if "absent" not in model
    )
    for method in methods:
        cells = [_precision(one["models"].get(method)) for one in written.values()]
        lines.append(f"| {method.replace('_', ' ')} | {' | '.join(cells)} |")
    notes = [line for one in written.values() for line in ("", one["notes"][0])]
    false = [line for name, one in written.items() for line in _false_between(name, one)]
    return "\n".join([*lines, *false, *notes, "", _bench_machine(next(iter(written.values())))])


def _false_between(name: str, run: Mapping[str, Any]) -> list[str]:
    """Say which planted images the false links join; nothing where there are none."""
    between = run["models"]["skindx"]["copies"].get("false_links_between", {})
    said = ", ".join(f"{kinds.replace('_', ' ')}: {count}" for kinds, count in between.items())
    return ["", f"False links in {name}, by the kinds of the two images: {said}."] if said else []


_CLEAN_OTHER = {
    "isic9": "clean-isic9-other.json",
    "photos with boxes": "clean-boxes-other.json",
}


def clean_other(load: Load) -> str:
    """Return false links and recall under overlays from which nothing was learned."""
    written = {name: load(file) for name, file in _CLEAN_OTHER.items()}
    lines = [f"| | {' | '.join(written)} |", "|---" * (len(written) + 1) + "|"]
    found = []
    for one in written.values():
        kinds = [figure for key, figure in one["figures"].items() if "copies_recall_" in key]
        count = sum(round(figure["value"] * figure["n"]) for figure in kinds)
        found.append(f"{count} of {sum(figure['n'] for figure in kinds)}")
    lines.append(f"| copies found, all kinds | {' | '.join(found)} |")
    rows = (
        ("**false links**, of all links", "false_links"),
        ("images misled by an overlay", "images_misled_by_overlays"),
    )
    for name, key in rows:
        cells = [_counted(one["figures"][key]) for one in written.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    false = [line for name, one in written.items() for line in _false_between(name, one)]
    notes = [line for one in written.values() for line in ("", one["notes"][0])]
    return "\n".join([*lines, *false, *notes])


def links(load: Load) -> str:
    """Return how many accepted links a person looked at, and how many were false."""
    written = load("links-looked-at.json")
    lines = [
        "| dataset | links accepted | looked at | families of these | labels confirm | looked at "
        "before | false | share of families with a false link |",
        "|---" * 8 + "|",
    ]
    counts = (
        "accepted",
        "looked_at",
        "families_looked_at",
        "confirmed_by_labels",
        "looked_at_before",
        "false",
    )
    for row in written["rows"]:
        cells = [str(row[name]) for name in counts]
        share = _share(_interval(row["share_false"]))
        lines.append(f"| {row['name']} | {' | '.join(cells)} | {share} |")
    chosen = [f"{row['name']}: {row['chosen']}." for row in written["rows"] if "chosen" in row]
    notes = [*chosen, f"{written['not_counted']}.", f"Looked at by {written['who']}."]
    return "\n".join([*lines, "", " ".join(notes)])


def _counted(figure: Mapping[str, Any]) -> str:
    if figure["value"] > 1 or figure["spread"][1] > 1:
        low, high = figure["spread"]
        return f"{figure['value']:.0f} [{low:.0f}, {high:.0f}] of {figure['n']}"
    share = _share(_interval((figure["value"], *figure["spread"])))
    return f"{share}, n = {figure['n']}"


def _precision(model: Mapping[str, Any] | None) -> str:
    if not model or not model.get("copies"):
        return "–"
    return _decimal(_interval(model["copies"]["average_precision"]))


def exchanges(load: Load) -> str:
    """Return the times of the exchanges, part by part."""
    written = load(_EXCHANGE)
    lines = ["| network | exchange | ms | of these local | MB a rank |", "|---|---|---|---|---|"]
    for row in written["models"].values():
        local = _median(row["local_ms"], "") if row.get("local_ms") else ""
        sent = f"{row['sent_bytes'] / 1e6:.3g}" if row["sent_bytes"] else ""
        total = _median(row["total_ms"], "")
        lines.append(f"| {row['part']} | {row['name']} | {total} | {local} | {sent} |")
    notes = [line for note in written["notes"] for line in ("", note)]
    return "\n".join([*lines, *notes, "", _bench_machine(written)])


def _median(figure: Mapping[str, Any], unit: str | None = None) -> str:
    low, high = figure["spread"]
    shown = figure["unit"] if unit is None else unit
    rounds = f", n = {figure['n']}" if unit is None else ""
    return f"{_unit(figure['value'], shown)} [{_digits(low)}, {_digits(high)}]{rounds}"


def _unit(value: float, unit: str) -> str:
    return f"{_digits(value)} {'' if unit == 'of a step' else unit}".strip()


def _digits(value: float) -> str:
    """Return three digits that count, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.3g}'):g}"


_FOLDERS = {"isic9": "isic9, dermoscopic", "train": "photos with boxes"}


def not_skin(load: Load) -> str:
    """Return what the check for images of no skin flags of skin, and finds of painted others."""
    written = load(_NOT_SKIN)
    lines = ["| images | n | sources | flagged |", "|---|---|---|---|"]
    rows = [(f"{_FOLDERS[row['kind']]}: {row['change']}", row) for row in written["skin"]]
    rows += [("painted skin", written["painted_skin"])]
    rows += [(f"painted: {row['kind']}", row) for row in written["painted"]]
    for name, row in rows:
        share = _share(_interval(row["flagged"]))
        lines.append(f"| {name} | {row['n']} | {row['sources']} | {share} |")
    types = {name for row in written["skin"] for name in row.get("by_skin_type", {})}
    note = f"Skin types of these images: {', '.join(sorted(types))}."
    return "\n".join([*lines, "", note, "", _machine(written)])


def unusual(load: Load) -> str:
    """Return what embeddings flag of skin, and find of painted images planted among it."""
    written = load(_NOT_SKIN)
    lines = ["| planted in | skin flagged | AUROC | planted and not found |", "|---|---|---|---|"]
    for folder, row in written["unusual"].items():
        missed = [kind for kind, share in row["found"].items() if share < 1]
        lines.append(
            f"| {_FOLDERS[folder]} ({row['skin']}, and {row['planted']} planted) | "
            f"{_share(_interval(row['skin_flagged']))} | {_decimal(_interval(row['auroc']))} | "
            f"{', '.join(missed) or 'none'} |"
        )
    model = next(iter(written["unusual"].values()))["model"]
    return "\n".join([*lines, "", f"The model: {model}.", "", _machine(written)])


def _answer(answer: str, reasons: list[str]) -> str:
    """Return a cell: yes, or the number of its reason, which is added to `reasons`."""
    if answer == "yes":
        return "yes"
    reason = " ".join(answer.removeprefix("no: ").replace("`", "'").split())
    if reason not in reasons:
        reasons.append(reason)
    return f"no ({reasons.index(reason) + 1})"


def _interval(raw: Iterable[float]) -> dict[str, float]:
    return dict(zip(("value", "low", "high"), raw, strict=True))


def _refused(row: Mapping[str, Any]) -> str:
    return _share(_interval(row["refused"]))


def _share(raw: Mapping[str, float]) -> str:
    figure = Interval(**raw)
    return f"{percent(figure)} {bounds(figure)}"


def _decimal(raw: Mapping[str, float]) -> str:
    figure = Interval(**raw)
    return f"{decimal(figure)} {bounds(figure, 'decimal')}"


def _whole(share: float) -> str:
    return f"{100 * share:.0f} %"


def _machine(origin: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    return f"{origin['hardware']}, {origin['date'][:10]}; {versions}."


def _bench_machine(written: Mapping[str, Any]) -> str:
    machine, versions = written["hardware"], written["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("skindx", "torch", "numpy"))
    return f"{machine['cpu']}, {machine['cores']} cores, {written['date'][:10]}; {named}."

"""Copies, links and images of no skin."""

from collections.abc import Mapping
from typing import Any

from blocks.texts import Load, bench_machine, cell, digits, named, number, origin_of

_NOT_SKIN = "not-skin.json"


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
    false = ["", *(line for name, one in written.items() for line in _false_between(name, one))]
    return "\n".join([*lines, *false, *notes, "", bench_machine(next(iter(written.values())))])


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


_SCALE = {
    "copies_describe_s": "describing, s",
    "copies_candidates_s": "candidates, s",
    "copies_verify_s": "verifying, s",
    "copies_minutes": "all, min",
    "copies_processor_minutes": "processor time, min",
    "copies_memory_mb": "memory, MB",
    "copies_disk_mb": "on the disk, MB",
    "copies_pairs_verified": "pairs verified",
    "copies_pairs_accepted": "pairs accepted",
    "copies_hours_100k": "100,000 such images, extrapolated, h",
}


def copies_scale(load: Load) -> str:
    """Return what the search for copies takes among many images."""
    written = load("copies-scale.json")
    lines = ["| search for copies | |", "|---|---|"]
    for key, name in _SCALE.items():
        value = written["figures"][key]["value"]
        lines.append(f"| {name} | {value:,.0f} |" if value >= 100 else f"| {name} | {value:.3g} |")
    return "\n".join([*lines, "", *written["notes"], "", bench_machine(written)])


_STAGES = {
    "candidates": ("a candidate", "candidates_before"),
    "recall": ("**linked**", "recall_before"),
    "recall_zoom_small": ("linked, zoom below 1.25", "recall_before_zoom_small"),
    "recall_zoom_middle": ("linked, zoom 1.25 to 1.75", "recall_before_zoom_middle"),
    "recall_zoom_large": ("linked, zoom from 1.75", "recall_before_zoom_large"),
    "recall_joined": ("in one family", "recall_joined_before"),
    "accepted_of_all": ("accepted if every pair were a candidate", ""),
    "lost_no_points": ("lost: fewer than six points agree", ""),
    "lost_no_points_zoom_small": ("the same, zoom below 1.25", ""),
    "lost_no_points_zoom_middle": ("the same, zoom 1.25 to 1.75", ""),
    "lost_no_points_zoom_large": ("the same, zoom from 1.75", ""),
    "lost_not_accepted": ("lost: points agree, and the pixels too little", ""),
    "lost_no_candidate": ("lost: accepted, and never a candidate", ""),
}


def second_photos(load: Load) -> str:
    """Return where pairs of photos of one lesion are lost, and links between different lesions."""
    written = load("second-photos.json")
    figures = written["figures"]
    lines = ["| pairs of photos of one lesion | n | before | now |", "|---" * 4 + "|"]
    for key, (name, before) in _STAGES.items():
        if key not in figures:
            continue
        cells = [
            cell(named((figure["value"], *figure["spread"]))) if figure else "–"
            for figure in (figures.get(before), figures[key])
        ]
        lines.append(f"| {name} | {figures[key]['n']:,} | {' | '.join(cells)} |")
    lines += [
        "",
        "| links between different lesions | false | pairs | at most, of a million pairs |",
    ]
    lines += ["|---" * 4 + "|"]
    for key, name in (("", "all"), ("_of_one_class", "of one class")):
        count, rate = figures[f"false_links{key}"], figures[f"false_rate{key}"]
        bound = digits(1e6 * rate["spread"][1])
        lines.append(f"| {name} | {count['value']:.0f} | {count['n']:,} | {bound} |")
    verified, minutes = figures["pairs_verified"], figures["search_minutes"]
    cost = (
        f"{verified['value']:,.0f} pairs of {verified['n']:,} photos were verified; the search "
        f"took {digits(minutes['value'])} min."
    )
    notes = [line for note in written["notes"] for line in ("", note)]
    return "\n".join([*lines, "", cost, *notes, "", bench_machine(written)])


def leak(load: Load) -> str:
    """Return how many copies fingerprints recognise, and how many strangers they link."""
    written = load("leak.json")
    lines = ["| share of images | n | |", "|---" * 3 + "|"]
    for name, figure in written["figures"].items():
        if name != "fingerprints":
            shown = cell(named((figure["value"], *figure["spread"])))
            lines.append(f"| {name} | {figure['n']:,} | {shown} |")
    return "\n".join([*lines, "", *written["notes"], "", bench_machine(written)])


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
        share = cell(named(row["share_false"]))
        lines.append(f"| {row['name']} | {' | '.join(cells)} | {share} |")
    chosen = [f"{row['name']}: {row['chosen']}." for row in written["rows"] if "chosen" in row]
    notes = [*chosen, f"{written['not_counted']}.", f"Looked at by {written['who']}."]
    return "\n".join([*lines, "", " ".join(notes)])


def _counted(figure: Mapping[str, Any]) -> str:
    if figure["value"] > 1 or figure["spread"][1] > 1:
        low, high = figure["spread"]
        return f"{figure['value']:.0f} [{low:.0f}, {high:.0f}] of {figure['n']}"
    share = cell(named((figure["value"], *figure["spread"])))
    return f"{share}, n = {figure['n']}"


def _precision(model: Mapping[str, Any] | None) -> str:
    if not model or not model.get("copies"):
        return "–"
    return number(named(model["copies"]["average_precision"]))


def wrong_labels(load: Load) -> str:
    """Return which part of planted wrong labels each ranking has among as many first doubts."""
    written = load("labels.json")
    key = "label_precision_at_n"
    lines = [
        "| ranking | swapped with any class (target: 70 %) | with a similar class |",
        "|---|---|---|",
    ]
    for name in ("", "cleanlab, ", "cleanlab kernel, ", "cleanlab margin, ", "selfclean, "):
        found = [written["figures"][f"{name}{key}{kind}"] for kind in ("", "_confusable")]
        cells = [cell(named((figure["value"], *figure["spread"]))) for figure in found]
        lines.append(f"| {name.rstrip(', ') or '**combined (skindx)**'} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *written["notes"], "", bench_machine(written)])


_FOLDERS = {"isic9": "isic9, dermoscopic", "train": "photos with boxes"}


def not_skin(load: Load) -> str:
    """Return what the check for images of no skin flags of skin, and finds of painted others."""
    written = load(_NOT_SKIN)
    lines = ["| images | n | sources | flagged |", "|---|---|---|---|"]
    rows = [(f"{_FOLDERS[row['kind']]}: {row['change']}", row) for row in written["skin"]]
    rows += [("painted skin", written["painted_skin"])]
    rows += [(f"painted: {row['kind']}", row) for row in written["painted"]]
    for name, row in rows:
        share = cell(named(row["flagged"]))
        lines.append(f"| {name} | {row['n']} | {row['sources']} | {share} |")
    types = {name for row in written["skin"] for name in row.get("by_skin_type", {})}
    note = f"Skin types of these images: {', '.join(sorted(types))}."
    return "\n".join([*lines, "", note, "", origin_of(written)])


def gates(load: Load) -> str:
    """Return the shares of photos and of painted images that the gates refuse."""
    written = load("gates.json")
    lines = [
        "| photos | n | sources | refused | by light | by skin | by blur | remarks |",
        "|---" * 8 + "|",
    ]
    rows = [(f"{_FOLDERS[row['kind']]}: {row['change']}", row) for row in written["photos"]]
    rows += [(f"painted: {row['kind']}", row) for row in written["painted"]]
    for name, row in rows:
        by = [str(row["gates"][gate]["refused"]) for gate in ("light", "no-skin", "blur")]
        remarks = sum(gate["remarked"] for gate in row["gates"].values())
        share = cell(named(row["refused"]))
        lines.append(
            f"| {name} | {row['n']} | {row['sources']} | {share} | {' | '.join(by)} | {remarks} |"
        )
    return "\n".join([*lines, "", origin_of(written)])


def unusual(load: Load) -> str:
    """Return what embeddings flag of skin, and find of painted images planted among it."""
    written = load(_NOT_SKIN)
    lines = ["| planted in | skin flagged | AUROC | planted and not found |", "|---|---|---|---|"]
    for folder, row in written["unusual"].items():
        missed = [kind for kind, share in row["found"].items() if share < 1]
        lines.append(
            f"| {_FOLDERS[folder]} ({row['skin']}, and {row['planted']} planted) | "
            f"{cell(named(row['skin_flagged']))} | {number(named(row['auroc']))} | "
            f"{', '.join(missed) or 'none'} |"
        )
    model = next(iter(written["unusual"].values()))["model"]
    return "\n".join([*lines, "", f"The model: {model}.", "", origin_of(written)])


_MANY = 10**9
_IMAGE_BYTES, _REQUEST_S = 100_000, 0.5
_DAY_S, _HOUR_S = 86_400, 3_600


def arithmetic(load: Load) -> str:
    """Return what a build of very many images takes, from two measurements and two assumptions."""
    scale, screen = load("scale.json"), load("screen.json")
    measured = scale["figures"]
    pair_s, pair_bytes, row_us, row_bytes = (
        measured[key]["value"]
        for key in (
            "chunk_pair_s", "chunk_pair_bytes", "driver_us_per_row", "driver_bytes_per_row",
        )
    )  # fmt: skip
    per_s = screen["figures"]["screen_per_core"]["value"]
    chunks = -(-_MANY // 2**22)
    pairs = chunks * (chunks + 1) // 2
    crawl_days = ", ".join(
        f"{hosts:,}: {_MANY / hosts / _DAY_S:,.3g}" for hosts in (100, 1000, 10_000)
    )
    rows = (
        ("store", f"10⁹ × {_IMAGE_BYTES / 1e3:.0f} kB", f"{_MANY * _IMAGE_BYTES / 1e12:.0f} TB"),
        (
            "fetch, 1 request a second and host",
            "10⁹ s over the hosts",
            f"days by hosts: {crawl_days}",
        ),
        (
            "crawls, 16 requests at once",
            f"16 / {_REQUEST_S} s = {16 / _REQUEST_S:.0f} images/s each",
            f"1,000 hosts: {1000 * _REQUEST_S / 16:.0f} crawls",
        ),
        ("screen", f"10⁹ / {digits(per_s)} a second", f"{_MANY / per_s / _HOUR_S:,.0f} core-hours"),
        ("hashes", "8 B × 2 kinds × 8 orientations", f"{_MANY * 128 / 1e9:.0f} GB"),
        (
            "compare",
            f"{chunks} chunks of 2²², {pairs:,} pairs × {digits(pair_s)} s",
            f"{pairs * pair_s / _HOUR_S:,.0f} core-hours, {pair_bytes / 1e9:.1f} GB a task",
        ),
        (
            "driver",
            f"10⁹ × {digits(row_us)} µs; 10⁹ × {digits(row_bytes)} B",
            f"{_MANY * row_us / 1e6 / _HOUR_S:,.0f} h; **{_MANY * row_bytes / 1e12:.1f} TB**",
        ),
    )
    lines = ["| what | arithmetic | result |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    assumed = (
        f"Assumed, not measured: {_IMAGE_BYTES / 1e3:.0f} kB an image, {_REQUEST_S} s a request, "
        f"hosts with equal shares."
    )
    notes = "\n\n".join([*scale["notes"], *screen["notes"][:2]])
    return "\n".join([*lines, "", assumed, "", notes, "", bench_machine(scale)])


_ALARMS = {
    "before": "whatever the model says",
    "after": "**with the dataset's modality**",
    "unstated": "by the pixels alone, if the dataset states no modality",
}


def audit_alarms(load: Load) -> str:
    """Return the share of images flagged as intimate regions, without and with the modality."""
    written = load("audit-alarms.json")
    lines = ["| flagged as an intimate region | dermoscopic | clinical |", "|---|---|---|"]
    for rule, name in _ALARMS.items():
        figures = [
            written["figures"][f"{kind}_intimate_{rule}"] for kind in ("dermoscopic", "clinical")
        ]
        cells = (
            cell(named((figure["value"] / 100, *(bound / 100 for bound in figure["spread"]))))
            for figure in figures
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    notes = [line for note in written["notes"] for line in ("", note)]
    return "\n".join([*lines, *notes, "", bench_machine(written)])


_IMPORTED = {
    "files": "**all, in equal shares**",
    "jpeg": "JPEG, kept as it is compressed",
    "explicit": "uncompressed",
    "rle": "RLE",
    "deflated": "deflated",
    "jpeg_2000": "JPEG 2000, lossless",
}


def dicom_import(load: Load) -> str:
    """Return the DICOM files a second that one core makes images of, by transfer syntax."""
    written = load("dicom-import.json")
    figures = written["figures"]
    lines = ["| transfer syntax | files a second and core |", "|---|---|"]
    for key, name in _IMPORTED.items():
        figure = figures[f"{key}_per_core"]
        low, high = figure["spread"]
        lines.append(f"| {name} | {figure['value']:.1f} [{low:.1f}, {high:.1f}] |")
    memory = f"Peak memory: {figures['peak_memory']['value']:.0f} MB."
    rounds = f"Medians of {figures['files_per_core']['n']} rounds with quartiles."
    notes = " ".join((*written["notes"], rounds, memory))
    return "\n".join([*lines, "", notes, "", bench_machine(written)])

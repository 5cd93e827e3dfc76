"""The figures of the benches of speed."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blocks.texts import Load, bench_machine, digits, median, scaled, table, whole

Written = Mapping[str, Any]
"""What a bench wrote."""
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
        "loader_over_decode": ("the loader over decoding alone", 0.95),
        "decode_and_resize_over_decode": ("decoding, then resizing, over decoding alone", None),
        "loader_over_decode_and_resize": ("the loader over decoding, then resizing", None),
        "loader_over_imagefolder": ("the loader over torchvision's ImageFolder with v2", 3.5),
        "cache_over_imagefolder": ("the memory-mapped cache over ImageFolder", 20),
        "cache_over_resize_limit": ("the cache over its crop and resize alone", 0.9),
        "resize_over_opencv": ("that resize over OpenCV's", None),
        "resize_over_copy": ("that resize over a copy of the same pixels", None),
    },
    "trainer": {
        "bare_loop_over_step": ("a bare PyTorch loop's step over ours", 0.95),
        "loader_wait_share": ("share of a step that waits for its images", 0.03),
    },
    "checkpoint-stall": {
        "checkpoint_stall_share": (
            "a checkpoint every 50 steps of MobileNetV2, AdamW and EMA: time over that without, "
            "less one",
            0.02,
        ),
        "checkpoint_stall_share_waited_for": ("the same, where the step waits for the disk", None),
        "checkpoint_cost_share": ("waiting and the writer's processor time, over that", None),
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
    "parallel": {
        "owt_over_data": ("AlexNet at 128 px: OWT over the fastest exact exchange (bf16)", 3),
        "owt_over_fused": ("OWT over the fused exchange in fp32", None),
        "owt_over_gtopk": ("OWT over gTop-k", None),
        "owt_over_owt_gtopk": ("OWT over OWT with gTop-k for the convolutions", None),
        "owt_over_model": ("OWT over a pipeline of four stages", None),
        "alone_over_data_small": (
            "56 px, 200 classes: one rank over the fastest exact exchange",
            1,
        ),
        "alone_over_owt_small": ("56 px, 200 classes: one rank over OWT", 1),
        "plan_agrees": ("pairs of forms in the order that was planned", 1),
        "keep_fewer_bytes": ("bytes of two products: split in one dimension over a cube", None),
        "cube_over_line": ("speed of the cube over one dimension, 8 ranks", None),
    },
    "plan": {
        "step_error_mean": ("predicted against measured time of a step, mean error", 0.05),
        "step_error_max": ("the same, the largest error", 0.15),
        "memory_error_mean": ("predicted against measured memory, mean error", 0.1),
        "interval_coverage": ("steps inside the predicted 90 % interval", 0.8),
        "interval_half_width": ("half width of that interval", 0.1),
        "chosen_over_best": ("speed of the exchange that the plan chooses over the fastest", 0.95),
        "order_right": ("pairs of exchanges in the order that was measured", 0.9),
        "search_s": ("search for a ResNet-50 on up to 64 ranks", 1),
        "measure_s": ("`skindx plan measure`, the longest of the networks", 60),
        "bcaffe_error_mean": ("public measurements of B-Caffe, mean error", 0.05),
    },
    "plan-public": {
        "ethernet_coverage": (
            "ResNet-50 as published on 10 Gbit Ethernet: steps inside the 90 % interval",
            0.8,
        ),
        "ethernet_half_width": ("median half width of these intervals", 0.2),
        "infiniband_coverage": ("the same on 100 Gbit InfiniBand", 0.8),
        "infiniband_half_width": ("median half width of these intervals", 0.1),
        "message_over_alone": (
            "B-Caffe's public runs over TCP: messages in training over the all-reduces alone",
            None,
        ),
    },
    "gemm": {
        "nt_wins": ("products A·Bᵀ in which a transposed copy is not faster", None),
        "nt_regret": (
            "excess time of the chosen variant over the faster one, on held-out shapes",
            0.02,
        ),
        "fit_s": ("measuring and learning the choice", 60),
    },
    "review": {
        "first_paint_s": ("the review page before 10,000 images: first paint", 1),
        "usable_s": ("until the first image can be decided", None),
        "decision_ms": ("a decision, from the key to the next image", 50),
        "on_disk_ms": ("an answer, until it is on disk", None),
        "box_on_disk_ms": ("an accepted box, until manifest and annotations are on disk", None),
        "frame_ms": ("a frame while the list is dragged from end to end", None),
    },
    "serve": {
        "page_12mp_s": ("a 12-megapixel photo from the click to the complete page", 0.5),
        "page_report_s": ("from the click on “PDF report” to the file", None),
        "direct_over_http_cpu": ("processor time of a direct call over the HTTP endpoint's", 0.77),
        "ort_fp32_over_eager": ("ONNX Runtime fp32 over eager PyTorch, the least of three", 2),
        "openvino_bf16_over_eager": ("OpenVINO bf16 over eager, the least of three", 3.2),
        "chosen_over_best": ("the runtime that the server chooses over the fastest", 0.97),
    },
    "api": {
        "api_over_networks": ("time of `Model.predict` over its networks and decoding", 1.05),
    },
    "features": {
        "features_report_s": (
            "heads, calibration and report of 2,000 embeddings of 1,024 numbers",
            60,
        ),
    },
}
"""Bench -> figure -> what it is, and what is asked: at most a time or share, at least all else."""

_AT_MOST = {
    "api_over_networks",
    "checkpoint_stall_share",
    "nt_regret",
    "nt_overhead",
    "makespan_over_bound",
    "step_error_mean",
    "step_error_max",
    "memory_error_mean",
    "interval_half_width",
    "bcaffe_error_mean",
    "ethernet_half_width",
    "infiniband_half_width",
}
"""Ratios and shares that are better when they are smaller."""


def speed(load: Load) -> str:
    """Return the figures of the benches, each with its spread and what is asked."""
    lines = ["| `skindx bench` | figure | median [25 %, 75 %] | asked | |", "|---|---|---|---|---|"]
    machines: dict[str, list[str]] = {}
    for bench, shown in SPEED.items():
        written = load(f"{bench}.json")
        machines.setdefault(bench_machine(written), []).append(bench)
        for key, (what, asked) in shown.items():
            figure = written["figures"][key]
            unit = figure["unit"]
            at_most = unit in ("s", "ms", "of a step") or key in _AT_MOST
            met = asked is None or (figure["value"] <= asked) == at_most
            lines.append(
                f"| `{bench}` | {what} | {median(figure)} | "
                f"{'' if asked is None else ('≤ ' if at_most else '≥ ') + scaled(asked, unit)} | "
                f"{'' if met else '**missed**'} |"
            )
    named = [f"{', '.join(benches)}: {machine}" for machine, benches in machines.items()]
    return "\n".join([*lines, "", *(line for note in named for line in (note, ""))])


def forms(load: Load) -> str:
    """Return what each parallel form takes, what was planned for it, and what it learns."""
    return _forms(load("parallel.json"))


def forms_bf16(load: Load) -> str:
    """Return the same where all of them compute in bf16."""
    return _forms(load("parallel-bf16.json"))


def _forms(written: Mapping[str, Any]) -> str:
    figures = written["figures"]
    lines = [
        "| form | s a step | planned | MB a rank | accuracy [range] |",
        "|---|---|---|---|---|",
    ]
    for key in figures:
        if key.endswith("_step_s") and not key.endswith("_small_step_s"):
            name = key.removesuffix("_step_s")
            sent = figures[f"{name}_step_mb"]["value"]
            plan, accuracy = (figures.get(f"{name}_{of}") for of in ("plan_s", "accuracy"))
            planned = f"{plan['value']:.3g}" if plan else ""
            lines.append(
                f"| `{name}` | {median(figures[key], '')} | {planned} | {sent:.3g} | "
                f"{median(accuracy, '') if accuracy else ''} |"
            )
    shown = [
        f"`{key}` {median(figures[key], '')}{_asked(figures[key], least=least)}"
        for key, least in (("owt_over_data", 3), ("plan_agrees", 1))
        if key in figures
    ]
    return "\n".join([*lines, "", "; ".join(shown) + ".", "", bench_machine(written)])


def _asked(figure: Mapping[str, Any], *, least: float = -math.inf, most: float = math.inf) -> str:
    """Return the one limit that is given, and whether the figure misses it."""
    limit = f"at least {least}" if most == math.inf else f"at most {most}"
    missed = "" if least <= figure["value"] <= most else "; **missed**"
    return f" (asked: {limit}{missed})"


def elastic(load: Load) -> str:
    """Return which share of its steps a training keeps whose ranks are killed, and how soon."""
    written = load("elastic.json")
    figures = written["figures"]
    kills = {"": "120 s", "_30": "30 s"}
    lines = ["| a rank of 4 is killed every | elastic | the same command again |", "|---|---|---|"]
    for key, seconds in kills.items():
        ours, again = figures[f"elastic_goodput{key}"], figures[f"restarted_goodput{key}"]
        asked = _asked(ours, least=0.65 if key else 0.88)
        lines.append(f"| {seconds} | {median(ours)}{asked} | {median(again)} |")
    lines += ["", "| after | the others have | in s |", "|---|---|---|"]
    answers = {
        "closed_noticed_s": ("a rank is killed", "left their step", 1),
        "hang_noticed_s": ("a rank is stopped", "left their step", 5),
        "cut_noticed_s": ("a rank's link goes down", "left their step", 5),
        "regroup_s": ("they left their step", "state, and go on", 3),
    }
    for key, (accident, done, most) in answers.items():
        figure = f"{median(figures[key])}{_asked(figures[key], most=most)}"
        lines.append(f"| {accident} | {done} | {figure} |")
    network, *_, cores = written["notes"]
    means = (
        "Brackets go from the worst period to the best; they are no confidence intervals. A step "
        "that is lost again does not count. *The same command again* starts as soon as the "
        "training has ended, from its last checkpoint."
    )
    return "\n".join([*lines, "", means, "", network, "", cores, "", bench_machine(written)])


def second_order(load: Load) -> str:
    """Return what each optimizer needs for AdamW's accuracy, and what K-FAC costs a step."""
    random = {"kfac_time_to_adamw": 0.75, "kfac_overhead_step": 1.25, "eigen_share_p4": 0.3}
    measured = (
        ("Small painted images", "second-order.json", random),
        ("Dermoscopic photos", "second-order-isic9.json", random),
        ("Dermoscopic photos from ImageNet weights", "second-order-weights.json", {}),
    )
    tables = [f"### {title}\n\n{_optimizers(load(file), asked)}" for title, file, asked in measured]
    # The first note describes a run; the others explain the figures, in each file alike.
    explained = load(measured[-1][1])["notes"][1:]
    return "\n\n".join([*tables, "### What the figures are", *explained])


_MUON_LEAVES_THE_LAST_LAYER = "2026-11-26"
"""To AdamW: since that day."""


def _optimizers(written: Mapping[str, Any], asked: Mapping[str, float]) -> str:
    figures = written["figures"]

    def shown(key: str) -> str:
        return median(figures[key], "") if key in figures else "not reached"

    lines = [
        "| optimizer | learning rate | time | processor time | epochs | runs that reach it | "
        "best, points |",
        "|---|---|---|---|---|---|---|",
    ]
    columns = ("time_to_adamw", "processor_time_to_adamw", "epochs_to_adamw", "reached_adamw")
    for arm, row in written["models"].items():
        cells = (
            ["1", "1", "1", "", "0"]
            if arm == "adamw"
            else [shown(f"{arm}_{key}") for key in (*columns, "minus_adamw_balanced")]
        )
        lines.append(f"| `{arm}` | {row['learning_rate']:g} | {' | '.join(cells)} |")
    targets = []
    for key in ("kfac_time_to_adamw", "kfac_overhead_step", "eigen_share_p4"):
        target = _asked(figures[key], most=asked[key]) if key in asked else ""
        targets.append(f"`{key}` {shown(key)}{target}")
    about = written["notes"][0]
    if "muon" in written["models"] and written["date"] < _MUON_LEAVES_THE_LAST_LAYER:
        about += " `muon` took the last layer too."
    return "\n".join([*lines, "", "; ".join(targets) + ".", "", about, "", bench_machine(written)])


def exchanges(load: Load) -> str:
    """Return the times of the exchanges, part by part."""
    written = load(_EXCHANGE)
    lines = ["| network | exchange | ms | of these local | MB a rank |", "|---|---|---|---|---|"]
    for row in written["models"].values():
        local = median(row["local_ms"], "") if row.get("local_ms") else ""
        sent = f"{row['sent_bytes'] / 1e6:.3g}" if row["sent_bytes"] else ""
        total = median(row["total_ms"], "")
        lines.append(f"| {row['part']} | {row['name']} | {total} | {local} | {sent} |")
    notes = [line for note in written["notes"] for line in ("", note)]
    return "\n".join([*lines, *notes, "", bench_machine(written)])


def int8(load: Load) -> str:
    """Return the milliseconds of each network by each runtime, and what int8 gains."""
    return _by_machine(load, ("int8.json", "int8-epyc.json"), _int8)


def _by_machine(load: Load, files: Sequence[str], shown: Callable[[Written], str]) -> str:
    """Return what one bench found on several machines, each below its name."""
    results = [load(file) for file in files]
    return "\n\n".join(f"**{bench_machine(found)}**\n\n{shown(found)}" for found in results)


def _int8(written: Written) -> str:
    figures, models = written["figures"], written["models"]
    runtimes = list(next(iter(models.values())))
    heads = [name.replace("_", " ") for name in runtimes]
    lines = [f"| ms an image | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for network, row in models.items():
        cells = " | ".join(digits(row[name]["value"]) for name in runtimes)
        lines.append(f"| `{network}` | {cells} |")
    keys = [key for key in figures if not key.startswith(tuple(models))]
    lines += ["", f"| times as fast | {' | '.join(f'`{key}`' for key in keys)} |"]
    lines.append("|---" * (len(keys) + 1) + "|")
    for network in models:
        cells = " | ".join(median(figures[f"{network}_{key}"], "×") for key in keys)
        lines.append(f"| `{network}` | {cells} |")
    notes = [line for note in written["notes"] for line in ("", note)]
    return "\n".join([*lines, *notes])


def sparse(load: Load) -> str:
    """Return how many times faster than oneDNN each layer is, by its share of zeros."""
    return _by_machine(load, ("sparse.json", "sparse-avx512.json"), _sparse)


def _sparse(written: Written) -> str:
    models = {name: row for name, row in written["models"].items() if "break_even" in row}
    shares = list(next(iter(models.values()))["sparse_over_onednn"])
    heads = " | ".join(f"{whole(float(share))} zeros" for share in shares)
    lines = [f"| layer | {heads} | faster from |", "|---" * (len(shares) + 2) + "|"]
    for name, row in models.items():
        cells = " | ".join(f"{digits(row['sparse_over_onednn'][share])} ×" for share in shares)
        even = row["break_even"]
        lines.append(f"| {name} | {cells} | {'–' if even is None else whole(even)} |")
    for name, row in written["models"].items():
        if natural := row.get("natural_zeros"):
            lines += ["", f"| {name} | share |", "|---|---|"]
            lines += [f"| `{layer}` | {whole(share)} |" for layer, share in natural.items()]
    least = {"sparse_over_onednn_70": 1.3, "sparse_over_im2col": 3}
    figures = [
        f"- `{key}`: {median(figure)}" + (_asked(figure, least=least[key]) if key in least else "")
        for key, figure in written["figures"].items()
    ]
    notes = [line for note in written["notes"] for line in ("", note)]
    return "\n".join([*lines, "", *figures, *notes])


def products(load: Load) -> str:
    """Return how often NT wins and how fast a transposed copy is, by the use of the products."""
    return _by_machine(load, ("gemm.json", "gemm-avx512.json"), _products)


def _products(written: Written) -> str:
    lines = [
        "| use | products | NT wins | times as fast by a copy: least, median, most |",
        "|---|---|---|---|",
    ]
    for name, row in written["models"].items():
        speeds = ", ".join(digits(speed) for speed in row["transposed_over_nt"])
        lines.append(f"| {name} | {row['products']} | {row['nt_wins']} | {speeds} |")
    figures = [f"- `{key}`: {median(figure)}" for key, figure in written["figures"].items()]
    notes = [line for note in written["notes"] for line in ("", note)]
    return "\n".join([*lines, "", *figures, *notes])


def stages(load: Load) -> str:
    """Return where the processor time of an answer goes."""
    written = load("serve.json")
    lines = ["| stage | processor time a photo |", "|---|---|"]
    for stage, figure in written["parts"]["stages"].items():
        low, high = (digits(1000 * end) for end in figure["spread"])
        shown = f"{digits(1000 * figure['value'])} ms [{low}, {high}], n = {figure['n']}"
        lines.append(f"| {stage} | {shown} |")
    return "\n".join([*lines, "", bench_machine(written)])


_ARMS = {
    "dense": ("`dense`", "the network keeps up, or every tenth of a point counts"),
    "powersgd": ("`powersgd`", "the network is slow and layers are wide"),
    "gtopk": ("`gtopk`", "the network is slow, ranks and epochs are many"),
    "local": ("`local`", "a message in each step takes too long, and weights are given"),
    "local-longer": ("`local`, twice the epochs", "the same, and images may be seen more often"),
    "apart_ensemble": (
        "members apart, answers averaged",
        "ranks cannot reach each other, and answers may take as many times longer",
    ),
    "apart_soup": ("members apart, weights averaged", "the same, and all start from given weights"),
    "apart_member0": ("one member apart", "nowhere: it has seen only its share of the images"),
}
"""What is compared, and what it is for."""

_CASES = {
    "skin": "MobileNetV2 from ImageNet weights, images of skin",
    "painted": "ResNet-18 from random weights, synthetic images",
}


def local_steps(load: Load) -> str:
    """Return what exchanges and members trained apart cost in accuracy and save in bytes."""
    written = load("local.json")
    figures, models = written["figures"], written["models"]
    cases = dict.fromkeys(name.split(": ")[0] for name in models)
    made: list[str] = []
    shown: dict[str, None] = {}
    for case in cases:
        dense = models[f"{case}: dense"]["steps"]
        links = list(dense)
        heads = ["trained by", "accuracy, points from `dense`"]
        heads += ["times fewer bytes"] if links else []
        heads += [f"step at {mbit} Mbit/s, s" for mbit in links]
        heads += [f"times longer than `local`, {mbit} Mbit/s" for mbit in links]
        rows = []
        for arm, (name, _) in _ARMS.items():
            like = "local" if arm == "local-longer" else arm.split("_")[0]
            steps = models.get(f"{case}: {like}", {}).get("steps", {})
            gain = figures.get(f"{case}_{arm}_minus_dense_balanced")
            if gain is None and (arm.startswith(("apart", "local")) or not steps):
                continue
            less = digits(_less(dense, steps)) if steps else ""
            sent = ["none sent" if arm.startswith("apart") else less] if links else []
            later = [figures.get(f"{case}_local_over_{arm}_{mbit}mbit") for mbit in links]
            rows.append([
                name, median(gain) if gain else "0" if arm == "dense" else "not trained", *sent,
                *(digits(steps[mbit]["seconds"]) if mbit in steps else "" for mbit in links),
                *(_sooner(x, models, case, arm) for x in later),
            ])  # fmt: skip
            shown[name] = None
        made += [f"**{_CASES[case]}**", "", table(heads, rows), "", *_rounds(case, models)]
    advice = [[name, when] for name, when in _ARMS.values() if name in shown]
    made += [table(["trained by", "where"], advice), ""]
    for note in written["notes"]:
        key, colon, text = note.partition(":")
        made += [f"**{_COLUMNS[key]}**:{text}" if colon and key in _COLUMNS else note, ""]
    return "\n".join([*made, bench_machine(written)])


def _sooner(figure: Any, models: Mapping[str, Any], case: str, arm: str) -> str:
    """Return how much longer an arm took; a bound alone where no seed came to the accuracy."""
    if not figure:
        return "–"
    kind, _, part = arm.partition("_")
    splits = [f"{part}_{split}" if part else split for split in ("val", "test")]
    reached = False
    for dense, seed in zip(
        models[f"{case}: dense"]["seeds"], models[f"{case}: {kind}"]["seeds"], strict=False
    ):
        goal = (dense["val"][-1] + dense["test"][-1]) / 2 - 0.5
        curves = zip(*(seed[split] for split in splits), strict=True)
        reached |= any(sum(pair) / 2 >= goal for pair in curves)
    return median(figure, "") if reached else f"more than {digits(figure['value'])}: never reached"


_COLUMNS = {
    "X_minus_dense_balanced": "Accuracy",
    "bytes_less_than_X": "Bytes",
    "local_over_X": "Times longer",
}
"""What a note of the benchmark calls its figures -> what the table calls them."""


def _rounds(case: str, models: Mapping[str, Any]) -> list[str]:
    """Return what shorter rounds came to, where they were looked at."""
    others = {
        name: row
        for name, row in models.items()
        if name.startswith(f"{case}: ") and "seeds" not in row
    }
    if not others:
        return []
    first = [
        (models[f"{case}: {arm}"]["exchange"], models[f"{case}: {arm}"]["seeds"][0]["val"])
        for arm in ("dense", "local")
    ]
    rows = [
        [str(exchange.get("steps", 0)), digits(val[-1])]
        for exchange, val in [*first, *((row["exchange"], row["val"]) for row in others.values())]
    ]
    heads = ["steps of a round (0: `dense`)", "accuracy on validation images, first seed, %"]
    return [table(heads, rows), ""]


def _less(dense: Mapping[str, Any], steps: Mapping[str, Any]) -> float:
    link = next(iter(dense))
    return float(dense[link]["bytes"] / steps[link]["bytes"])


def first_hour(load: Load) -> str:
    """Return what the way from a folder of images to the page takes, by the number of images."""
    written = load("first-hour.json")
    figures, parts = written["figures"], written["parts"]
    steps, rows = ("new", "build", "train", "evaluate", "page", "total"), []
    for count in dict.fromkeys(name.split()[0] for name in parts):
        each = [parts[f"{count} {step}"] for step in steps[:-1] if f"{count} {step}" in parts]
        if f"{count}_total_s" in figures:
            measured = [figures[f"{count}_{step}_s"] for step in steps]
            seconds = [median(x, "") if x["n"] > 1 else digits(x["value"]) for x in measured]
            largest = max(figures[f"{count}_{step}_gb"]["value"] for step in steps[:-1])
        else:
            times = [step.get("seconds", step.get("expected_s")) for step in each]
            seconds = [*map(digits, times), "", f"computed: {digits(sum(times))}"]
            largest = max(step.get("expected_gb", step.get("gb")) for step in each)
        rows.append([f"{int(count):,}", each[0]["trains"], *seconds, scaled(largest, "GB")])
    heads = ["images", "what is trained", *(f"{step}, s" for step in steps), "most memory"]
    notes = [line for note in written["notes"] for line in (note, "")]
    return "\n".join([table(heads, rows), "", *notes, bench_machine(written)])

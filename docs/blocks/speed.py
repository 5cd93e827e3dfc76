"""The figures of the benches of speed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blocks.texts import Load, bench_machine, beside_target, digits, median, scaled, table, whole

Written = Mapping[str, Any]
"""What a bench wrote."""


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
        "codes_per_core": ("libjpeg reading the Huffman codes alone: hashing's bound", None),
        "hash_over_codes": ("hashing over that bound", None),
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
        "crops_over_decoding": ("crops over decoding alone, in processor time of a thread", None),
        "crops_over_profiles_ignored": ("crops over those that ignore colour profiles", 0.98),
        "wide_over_plain": ("crops of files of Display P3 over those of sRGB", 0.667),
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
"""Bench -> figure -> what it is, and its target: at most a time or share, at least all else."""

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
    """Return the figures of the benches, each with its spread and its target."""
    lines = [
        "| `skindx bench` | figure | median [25 %, 75 %] | target | |",
        "|---|---|---|---|---|",
    ]
    machines: dict[str, list[str]] = {}
    for bench, shown in SPEED.items():
        written = load(f"{bench}.json")
        machines.setdefault(bench_machine(written), []).append(bench)
        for key, (what, target) in shown.items():
            if key not in written["figures"]:
                continue  # measured since, and not in this file yet
            figure = written["figures"][key]
            unit = figure["unit"]
            at_most = unit in ("s", "ms", "of a step") or key in _AT_MOST
            met = target is None or (figure["value"] <= target) == at_most
            lines.append(
                f"| `{bench}` | {what} | {median(figure)} | "
                f"{'' if target is None else ('≤ ' if at_most else '≥ ') + scaled(target, unit)} | "
                f"{'' if met else '**missed**'} |"
            )
    profiles = {"loader": "crops", "screen": "hashing"}
    for bench, work in profiles.items():
        if stages := load(f"{bench}.json").get("parts", {}).get("profile"):
            shares = [f"{name} {whole(stage['value'])}" for name, stage in stages.items()]
            lines += ["", f"`{bench}`, processor time of {work}: {', '.join(shares)}."]
    named = [f"{', '.join(benches)}: {machine}" for machine, benches in machines.items()]
    return "\n".join([*lines, "", *(line for note in named for line in (note, ""))])


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
        f"- `{key}`: {median(figure)}"
        + (beside_target(figure, least=least[key]) if key in least else "")
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

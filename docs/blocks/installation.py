"""What gets installed: sizes, and the licences of all pinned packages."""

from blocks.texts import Load, bench_machine
from skindx_bench.harness.result import markdown_table


def sizes(load: Load) -> str:
    """Return the GB of core, extras, demo and everything, for CUDA and for CPUs alone."""
    written = load("install.json")
    figures, parts = written["figures"], written["parts"]
    rows = [
        [
            f"core and `{name.removeprefix('core and ')}`" if " and " in name else name,
            str(part["packages"]),
            *(f"{figures[f'{name}, {kind}']['value'] / 1000:.2f}" for kind in ("CUDA", "CPU")),
        ]
        for name, part in parts.items()
    ]
    headings = ("installed", "packages", "GB with CUDA", "GB for CPUs")
    return "\n".join(
        [markdown_table(headings, rows), *written["notes"], "", bench_machine(written)]
    )


def licences(load: Load) -> str:
    """Return a row for each pinned package: versions, licence, and the extras that bring it."""
    rows = [
        [name, one["version"], one["licence"], ", ".join(f"`{extra}`" for extra in one["for"])]
        for name, one in load("licences.json")["packages"].items()
    ]
    return markdown_table(("package", "version", "licence", "brought by"), rows)

"""`skindx export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    bundle: Annotated[Path, typer.Argument(help="A bundle, RUN/bundle.")],
    dataset: Annotated[
        Path, typer.Option("--dataset", help="Dataset whose validation images check the export.")
    ],
    to: Annotated[Literal["onnx", "openvino"], typer.Option(help="The runtime.")],
    precision: Annotated[
        Literal["fp32", "bf16", "int8"],
        typer.Option(help="bf16: only openvino, on CPUs with avx512_bf16 or amx_bf16."),
    ] = "fp32",
) -> None:
    """Add a version of a bundle's networks for a faster runtime to the bundle.

    An export is refused if it differs from the networks on the validation images: fp32 must rank
    the same class first on all of them, bf16 and int8 on at least 99.5 %. `skindx serve` and
    `skindx diagnose` then use the fastest export that the machine can run.

    Example: skindx export runs/mine/bundle --dataset runs/mine/data --to onnx
    """
    from rich.table import Table

    from skindx.cli.options import console
    from skindx.models.bundle.bundle import open_bundle
    from skindx.models.exports.export import export_bundle

    done = export_bundle(bundle, to, precision, dataset)
    table = Table("member", title=f"{done.name}: checked on validation images")
    for heading in ("images", "same first class", "95 % interval", "least cosine"):
        table.add_column(heading, justify="right")
    for parity in done.parity:
        shown = (
            f"{parity.share:.2%}",
            f"{parity.low:.2%} .. {parity.high:.2%}",
            f"{parity.cosine:.6f}",
        )
        table.add_row(parity.member, str(parity.pictures), *shown)
    console().print(table)
    digest = open_bundle(bundle).digest
    print(f"{bundle / done.folder}: now part of the bundle; its new digest is {digest}")

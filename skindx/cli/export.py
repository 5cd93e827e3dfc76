"""`skindx models`, `export` and `bundle`: finished bundles, those that are installed too."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from skindx.cli.options import BundlePath
from skindx.core.errors import UserError

if TYPE_CHECKING:
    from skindx.models.exports.runtimes import ExportSpec


def export(
    bundle: BundlePath,
    dataset: Annotated[
        Path, typer.Option("--dataset", help="Dataset whose validation images check the export.")
    ],
    to: Annotated[str, typer.Option(metavar="BACKEND", help="The runtime: onnx or openvino.")],
    precision: Annotated[
        Literal["fp32", "bf16", "int8"],
        typer.Option(help="bf16: openvino, on CPUs with avx512_bf16 or amx_bf16."),
    ] = "fp32",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Write a copy with the export; the bundle stays as it is."
        ),
    ] = None,
) -> None:
    """Add a version of a bundle's networks for a faster runtime to the bundle.

    An export is refused if it differs from the networks on the validation images: fp32 must rank
    the same class first on all of them, bf16 and int8 on at least 99.5 %. `skindx serve` and
    `skindx diagnose` then use the fastest export that the machine can run.

    int8 learns its ranges from training images, and layers that it hurts stay in fp32. It is also
    refused if it is not faster than bf16 and fp32 on this machine, or loses more than half a point
    of balanced accuracy on the test images.

    Example: skindx export runs/mine/bundle --dataset runs/mine/data --to onnx

    Of an installed bundle: skindx export ham10000 --dataset data --to onnx --out runs/faster
    """
    from rich.table import Table

    from skindx.cli.options import console
    from skindx.models.bundle.bundle import open_bundle
    from skindx.models.bundle.installed import refuse_change
    from skindx.models.exports.bundle_export import export_bundle, export_copy

    if out is None:
        refuse_change(bundle)
        done = export_bundle(bundle, to, precision, dataset)
    else:
        done = export_copy(bundle, out, to, precision, dataset)
        bundle = out
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
    for line in _coarser(done):
        print(line)
    digests = open_bundle(bundle).digests
    print(f"{bundle / done.folder}: now part of the bundle; its new digest is {digests}")


def _coarser(done: "ExportSpec") -> list[str]:
    """Return what int8 adds: its gain, layers kept, balanced accuracy, what was fitted again."""
    from skindx.models.metadata_head import RULES

    lines = []
    if gain := done.gain:
        spread = f"25 % to 75 % of the rounds: {gain.low:.2f} to {gain.high:.2f}"
        lines.append(f"{gain.value:.2f} times as fast as {gain.over} ({spread})")
    for member, layers in done.kept.items():
        lines.append(f"{member}: in fp32 as before: {', '.join(layers)}")
    if result := done.accuracy:
        within = (
            f", 95 % interval of the difference {100 * result.low:+.2f} to {100 * result.high:+.2f}"
            if result.low is not None and result.high is not None
            else ""
        )
        lines.append(
            f"balanced accuracy on {result.pictures} test images: {100 * result.exported:.2f} %, "
            f"that of the networks {100 * result.eager:.2f} %{within}"
        )
    elif gain:
        lines.append("balanced accuracy: not measured, the dataset has no labelled test images")
    if fitted := done.calibration:
        again = [name.replace("_", " ") for name in RULES if getattr(fitted, name)]
        lines.append(f"fitted again for its answers: {', '.join(['temperatures', *again])}")
    return lines


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not text.")] = False,
) -> None:
    """List the installed bundles: classes, licence, figures, what they must not be used for.

    The name of one stands for its folder in every verb that takes a bundle.

    Example: skindx models
    """
    import json

    from skindx.models.bundle.installed import HEADLINE, described, installed_bundles

    sound, broken = installed_bundles()
    listed = []
    for one in sound:
        try:
            listed.append(described(one))
        except UserError as error:
            broken.append(str(error))
    if as_json:
        print(json.dumps({"bundles": listed, "problems": broken}, indent=2, ensure_ascii=False))
        return
    for entry in listed:
        brought = f"{entry['distribution']} {entry['version']}"
        print(f"{entry['name']} ({brought}), digest {entry['digest'][:16]}")
        print(f"  classes: {', '.join(entry['classes'])}")
        print(f"  licence: {entry['licence'] or 'not stated: ask who made it before you use it'}")
        shown = [
            f"{HEADLINE[key]} {_percent(key, figure['value'])} "
            f"[{_percent(key, figure['low'])}, {_percent(key, figure['high'])}]"
            for key, figure in entry["figures"].items()
        ]
        on = f" on {entry['images']} test images (95 % intervals)" if shown else ""
        print(f"  measured: {', '.join(shown) or 'it brings no evaluation of this bundle'}{on}")
        print(f"  {entry['use'] or 'It does not say what it must not be used for.'}")
        print(f"  to use it: skindx serve {entry['name']}")
    for problem in broken:
        print(f"note: {problem}")
    if not (listed or broken):
        print(
            "No bundle is installed. In a checkout `make` installs models/ham10000, and `pip "
            "install` what `skindx publish BUNDLE --as NAME` wrote."
        )


def _percent(key: str, value: float) -> str:
    return f"{value:.3f}" if key == "auroc" else f"{100 * value:.1f} %"


bundle = typer.Typer(
    no_args_is_help=True,
    help=(
        "Detach a trunk that you may not pass on from a bundle, and attach it elsewhere.\n\n"
        "A trunk is the frozen network that heads share (trunk: frozen). The model card states its "
        "licence."
    ),
)


@bundle.command("detach")
def detach_verb(
    bundle: BundlePath,
    out: Annotated[Path, typer.Option("--out", "-o", help="Archive to write (.zip).")],
    expect: Annotated[
        str | None, typer.Option(help="Digest that the bundle must have, or its first digits.")
    ] = None,
) -> None:
    """Write an archive of a bundle without its trunk; only `skindx bundle attach` reads it.

    Example: skindx bundle detach runs/mine/bundle --out mine.zip
    """
    from skindx.models.bundle.detach import detach

    names = detach(bundle, out, expect)
    print(f"wrote {out} without {', '.join(names)}")
    print(f"to complete it: skindx bundle attach {out.name} --out BUNDLE")


@bundle.command("attach")
def attach_verb(
    archive: Annotated[Path, typer.Argument(help="Archive that `skindx bundle detach` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Bundle to write.")],
    tower: Annotated[
        str | None, typer.Option(help="Where the trunk is: local-dir:FOLDER or hf-hub:ORG/NAME.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="A file with the trunk's weights.")] = None,
) -> None:
    """Restore a bundle, byte by byte, from an archive and its trunk, which is checked by hash.

    Without --tower and --weights, the trunk is downloaded from the address in the archive.

    Example: skindx bundle attach mine.zip --tower local-dir:towers/vit --out bundle
    """
    from skindx.models.bundle.detach import attach

    done = attach(archive, out, tower=tower, weights=weights)
    print(f"wrote {done.path}, digest {done.digest}")

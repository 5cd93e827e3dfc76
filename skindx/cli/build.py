"""What `skindx build` does with its options."""

from collections.abc import Sequence
from pathlib import Path

from skindx.cli.options import console
from skindx.errors import UserError


def run_build(
    source: Path | None,
    out: Path,
    *,
    taxonomy: str | None,
    freeze: Path | None,
    resplit: bool,
    older: Path | None,
    cluster: str | None,
    sets: Sequence[str],
) -> None:
    """Build, print the summary, and say what changed since `older`; without a source only that."""
    import json

    from skindx.data.build.build import build, load_build_settings
    from skindx.data.build.diff import compare, print_diff, read_version, write_diff
    from skindx.data.summary import print_summary
    from skindx.progress import progress_bars

    # Read before the build, which may well be into the same folder.
    before = read_version(older) if older else None
    if source:
        if freeze:
            sets = [*sets, f"split.frozen={json.dumps(str(freeze))}"]
        settings = load_build_settings(source, sets, taxonomy)
        if settings.split.frozen and resplit:
            raise UserError(
                f"splits frozen by {settings.split.frozen} cannot be made anew; leave out "
                f"--resplit, or set split.frozen=null."
            )
        with progress_bars() as progress:
            summary = build(settings, out, resplit=resplit, progress=progress, cluster=cluster)
        print_summary(summary, console())
    elif not before:
        raise UserError(
            "nothing to build from; give a recipe or a folder that holds class folders."
        )
    if before:
        difference = compare(before, read_version(out))
        write_diff(out, difference)
        print_diff(difference, console())

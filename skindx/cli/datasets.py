"""`skindx datasets`."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from skindx.data.layouts.known_layouts import KnownLayout


def datasets(
    name: Annotated[
        str | None, typer.Argument(help="A dataset of the list, to see all that is known of it.")
    ] = None,
) -> None:
    """List the public datasets and scrapers' folders that `skindx new` knows at sight.

    With NAME it shows one in full: licence, citation, what to download, what groups its images,
    what confirms a diagnosis, known faults, what each label means, and its recipe.

    Example: skindx datasets pad_ufes_20
    """
    from skindx.core.errors import UserError
    from skindx.data.layouts.known_layouts import known_layouts

    layouts = known_layouts()
    if name is None:
        wide = max(map(len, layouts), default=0)
        for key, layout in layouts.items():
            facts = ", ".join(filter(None, (layout.counts, f"licence {layout.licence}")))
            print(f"{key:{wide}}  {layout.title}: {facts}.\n{'':{wide}}  {layout.download}")
        print(
            "\nskindx datasets NAME shows one in full; skindx new FOLDER recognises its download."
        )
        return
    if name not in layouts:
        raise UserError(
            f"{name!r} is not a dataset that skindx knows; run `skindx datasets` for the list of "
            "names."
        )
    print("\n".join(_lines(layouts[name])))


def _lines(layout: "KnownLayout") -> list[str]:
    import yaml

    lines = [f"{layout.title}: {layout.about}"]
    facts = {
        "Holds": layout.counts,
        "Licence": layout.licence,
        "Citation": layout.citation,
        "Download": layout.download,
        "Groups": layout.groups,
        "Confirmed": layout.confirmed,
    }
    lines += [f"{what}: {text}" for what, text in facts.items() if text]
    for title, texts in (("Known faults", layout.faults), ("From memory", layout.unsure)):
        lines += [f"{title}:", *(f"  - {text}" for text in texts)] if texts else []
    if meanings := _meanings(layout):
        lines += ["Labels:", *(f"  {label} is {text}" for label, text in meanings.items())]
    if not layout.recipe:
        return [*lines, "Its columns differ; `skindx new` looks at them, and says what it took."]
    recipe = yaml.safe_dump(dict(layout.recipe), sort_keys=False, allow_unicode=True, width=100)
    return [*lines, "Recipe (`skindx new` fills in the paths):", *_indented(recipe)]


def _meanings(layout: "KnownLayout") -> dict[str, str]:
    """Return what each label of the recipes is taken for, with its code."""
    from skindx.taxonomy.label_matches import match

    meanings = {}
    for source in layout.recipe.get("sources", ()):
        for label, name in source.get("labels", {}).items():
            known = match(name) if name else None
            meanings[label] = known.words if known else name or "left out"
    return meanings


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]

"""Limitations of a dataset that its readers must know, computed from it."""

from collections import Counter
from collections.abc import Sequence

from skindx.data.publish.facts import Facts
from skindx.data.publish.row import Row
from skindx.taxonomy import Taxonomy


def limits_of(rows: Sequence[Row], taxonomy: Taxonomy, facts: Facts) -> list[str]:
    """Return the known limits and biases of published rows as sentences."""
    published = [row for row in rows if not row.withheld]
    sentences = [
        "Labels are those of the sources. They were not compared with biopsies or patient records.",
        f"The classes, codes and urgencies of the taxonomy {taxonomy.name} are "
        f"{taxonomy.review_note}.",
        "The classes are a closed list: healthy skin and every other disease are missing, and a "
        "model trained on it gives them one of these names.",
        "Duplicates were found by hashes: other photographs of the same patient or lesion remain "
        "where no source tied them together.",
        "A published image was chosen by its licence, so the published part is not a random "
        "sample of what was found.",
    ]
    if not published:
        return sentences
    sentences += [_balance(published, taxonomy), _skin(published), _sources(published)]
    boxed = sum(row.boxes is not None for row in published)
    if boxed:
        sentences.append(f"{boxed} of {len(published)} images were annotated with lesion boxes.")
    if not facts.audited:
        sentences.append(
            "No program has looked for faces, text and intimate regions; some may be there."
        )
    return sentences


def _balance(rows: Sequence[Row], taxonomy: Taxonomy) -> str:
    counts = Counter(row.label for row in rows)
    most = max(taxonomy.classes, key=lambda disease: counts[disease.key])
    least = min(taxonomy.classes, key=lambda disease: counts[disease.key])
    largest, smallest = counts[most.key], counts[least.key]
    said = (
        f"Every class has {largest} images."
        if largest == smallest
        else f"Classes are unequal: {most.name} has {largest} images, {least.name} {smallest}."
    )
    return f"{said} How often a class occurs here says nothing of how common it is."


def _skin(rows: Sequence[Row]) -> str:
    types = Counter(row.skin_type for row in rows if row.skin_type)
    known = types.total()
    if not known:
        return (
            "The skin type of no image is known. Public dermatology images show mostly light "
            "skin: expect mistakes on dark skin, which this dataset cannot measure."
        )
    dark = types[5] + types[6]
    return (
        f"The skin type of {known} of {len(rows)} images is known; of these {dark} "
        f"({100 * dark / known:.0f} %) show the dark types V and VI. Expect more mistakes where "
        f"there are fewer images."
    )


def _sources(rows: Sequence[Row]) -> str:
    (name, most), *others = Counter(row.source for row in rows).most_common()
    if not others:
        return f"All images come from one source ({name}), with its cameras and its patients."
    share = 100 * most / len(rows)
    return (
        f"{share:.0f} % of the images come from one source ({name}), with its cameras and its "
        f"patients; there are {len(others)} more."
    )

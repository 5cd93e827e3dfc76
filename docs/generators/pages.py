"""Which pages are generated, and where they are written."""

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from generators.command_line import command_line
from generators.http import http_interface, prometheus_names
from generators.kinds import kinds
from generators.metric_keys import metric_keys
from generators.peers import peers_page
from generators.settings import Page
from generators.systems import systems_page


def stale_pages(reference: Path, *, write: bool) -> list[Path]:
    """Return the generated pages under `reference` that the code would write otherwise.

    With `write` it writes them, and deletes a page that is generated no more.
    """
    folder = reference / "generated"
    pages = {folder / f"{name}.md": _with_heading_links(make()) for name, make in _PAGES.items()}
    stale = [page for page in folder.glob("*.md") if page not in pages]
    if write:
        for page in stale:
            page.unlink()
    for page, text in pages.items():
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            stale.append(page)
            if write:
                page.write_text(text, encoding="utf-8")
    return stale


def _with_heading_links(text: str) -> str:
    """Return a page whose links name headings, as code hosts know no `(target)=` of MyST."""
    seen: Counter[str] = Counter()
    targets, lines, target = {}, [], ""
    for line in text.split("\n"):
        if found := re.fullmatch(r"\((\S+)\)=", line):
            target = found[1]
            continue
        if found := re.fullmatch(r"#+ (.+)", line):
            slug = re.sub(r"[^\w -]", "", found[1].lower()).replace(" ", "-")
            if target:
                targets[target] = f"{slug}-{seen[slug]}" if seen[slug] else slug
            seen[slug] += 1
            target = ""
        lines.append(line)
    return re.sub(
        r"\]\(#([^)]+)\)", lambda link: f"](#{targets.get(link[1], link[1])})", "\n".join(lines)
    )


def _settings(title: str, model: str, lead: str) -> Callable[[], str]:
    module, _, name = model.rpartition(".")

    def make() -> str:
        root = getattr(importlib.import_module(module), name)
        page = Page(root, f"settings-{title.lower().replace(' ', '-')}")
        return f"# {title}\n\n{lead}\n\n{page.text()}"

    return make


def _benches() -> str:
    from skindx_bench.subjects import BENCHES, GROUPS

    group_of = {name: f"{group} {name}" for group, own in GROUPS.items() for name in own}
    sections = _sections({group_of.get(name, name): module for name, module in BENCHES.items()})
    return "\n".join(["# Settings of the benches\n", _BENCHES_LEAD, *sections])


def _sections(benches: dict[str, str]) -> Iterator[str]:
    for name, module in sorted(benches.items()):
        bench = importlib.import_module(module)
        text = Page(bench.Config, f"settings-bench-{name.split()[-1]}").text()
        yield f"## `skindx bench {name}`\n"
        yield text.replace("\n## ", "\n### ")


_BENCHES_LEAD = """`skindx bench GROUP SUBJECT` measures and prints a table with hardware,
versions, n and spread; `--set KEY=VALUE` changes a setting, `--json FILE` writes the figures,
`--smallest` only sees that it runs.
"""

_PAGES: dict[str, Callable[[], str]] = {
    "command-line": command_line,
    "http": http_interface,
    "kinds": kinds,
    "prometheus": prometheus_names,
    "metric-keys": metric_keys,
    "systems": systems_page,
    "peers": peers_page,
    "benches": _benches,
    "settings-recipe": _settings(
        "Recipe of a dataset",
        "skindx.data.recipe.BuildSettings",
        "The YAML file of `skindx build RECIPE --out DATA`; `--set A.B=VALUE` changes one key.",
    ),
    "settings-training": _settings(
        "Training run",
        "skindx.training.config.run.TrainSettings",
        "The YAML file of `skindx train DATA --config FILE --out RUN`; `--set A.B=VALUE` changes "
        "one key.",
    ),
    "settings-embeddings": _settings(
        "Embeddings",
        "skindx.review.image_embeddings.EmbedSettings",
        "The YAML file of `skindx dedup embed DATA --config FILE`.",
    ),
    "settings-audit": _settings(
        "Audit",
        "skindx.review.privacy_audit.PrivacySettings",
        "What `--set` changes in `skindx audit`.",
    ),
    "settings-publish": _settings(
        "Publishing",
        "skindx.data.publish.publish_settings.PublishSettings",
        "What the options of `skindx publish` decide.",
    ),
    "bundle-index": _settings(
        "Index of a bundle",
        "skindx.models.bundle.bundle_index.BundleSpec",
        "The keys of `bundle.json`. They are an interface: a key that is renamed in the code keeps "
        "its name here.",
    ),
}
"""Page -> how it is made."""

"""A plan as one self-contained page."""

from pathlib import Path

from skindx import __version__
from skindx.core.atomic_files import write_text
from skindx.core.text import html_environment, keep_units
from skindx.planning.plan import Plan
from skindx.planning.report import svg
from skindx.planning.report.text import candidates, summary

_MOST = 40


def write_page(path: Path, plan: Plan) -> None:
    """Write HTML without scripts, fonts or images of others, atomically."""
    from markupsafe import Markup

    headings, rows = candidates(plan, _MOST)
    machine = plan.machine
    page = (
        html_environment("skindx.planning.report")
        .get_template("plan.html.jinja")
        .render(
            version=__version__,
            summary=summary(plan),
            bottleneck=plan.bottleneck,
            changes=plan.changes,
            notes=plan.notes,
            advice=plan.advice,
            headings=headings,
            rows=rows,
            parts=[
                (name, seconds, seconds / plan.chosen.first.step_s)
                for name, seconds in plan.chosen.first.step.parts.items()
            ],
            pareto=Markup(svg.pareto(plan)),  # noqa: S704 (made by us, of escaped names)
            speedup=Markup(svg.speedup(plan.curve)),  # noqa: S704
            timeline=Markup(svg.timeline(plan.chosen.first.step)),  # noqa: S704
            beyond=any(point.beyond for point in plan.curve),
            networks=", ".join(profile.name for profile in machine.profiles.networks),
            cluster=machine.cluster,
            host=machine.profiles.host,
        )
    )
    write_text(path, keep_units(page))

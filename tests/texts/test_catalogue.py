"""Every sentence of an answer: in the catalogue once, used, short, in the glossary's words."""

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from skindx.core.seven_points import ITEMS, QUESTIONS, Answer
from skindx.diagnosis.checklist_advice import Tier
from skindx.models.conformal import Share
from skindx.scan.compare.scan_comparison import COMPARISON, REASONS
from skindx.taxonomy import Urgency
from skindx.texts import catalogue
from skindx.texts.catalogue import (
    KINDS,
    CatalogueError,
    Digits,
    Sentence,
    joined,
    percent,
    sentences,
    share_text,
    text,
    told_apart,
)

WHEEL = Path(catalogue.__file__).parents[1]
ROOMS = ("diagnosis/", "clinic/", "ui/page/", "scan/outputs/", "scan/compare/", "scan/ruler")
"""Where no sentence of an answer stands outside the catalogue."""
SHARE = Share(value=0.031, low=0.008, high=0.079, pictures=64)
VALUES: dict[str, Any] = {
    "count": 1942, "number": 5.0, "decimal": 1.328, "signed": -0.133, "percent": 0.46,
    "of100": 0.103, "risk": Digits(0.0795, 1), "share": SHARE, "name": "Melanoma", "cell": 0.46,
    "names": ["a", "b", "c"], "either": ["a", "b"], "shares": [("Nevus", 0.67), ("Wart", 0.33)],
    "tally": [("Nevus", 2), ("Wart", 1)],
    "date": datetime(2026, 3, 4, tzinfo=UTC), "time": datetime(2026, 3, 4, 5, 6, tzinfo=UTC),
    "seconds": datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC), "day": datetime(2026, 3, 4, tzinfo=UTC),
    "moment": datetime(2026, 3, 4, 5, 6, tzinfo=UTC),
}  # fmt: skip
WORDS = {
    "painting": "synthetic image", "picture": "image", "novelty": "out-of-distribution",
    "anomaly": "out-of-distribution", "confidence set": "conformal set", "guarantee": "fitted",
}  # fmt: skip
"""Words that compete with one of the glossary."""


def forms() -> Iterator[tuple[str, str]]:
    for key, sentence in sentences().items():
        for form in filter(None, (sentence.one, sentence.other)):
            yield key, form


def filled(key: str, n: int = 2) -> str:
    sentence = sentences()[key]
    kinds = dict(re.findall(r"\{([a-z_]+):([a-z0-9]+)\}", sentence.one + sentence.other))
    values = {name: VALUES[kind] for name, kind in kinds.items()}
    return text(key, **(values | ({"n": n} if "n" in sentence.placeholders else {})))


def test_every_key_is_written_with_values_of_its_kinds() -> None:
    assert set(VALUES) == set(KINDS)
    for key in sentences():
        for n in (1, 2):
            shown = filled(key, n)
            assert shown
            assert "{" not in shown
            assert shown == shown.strip()


def test_values_are_written_as_a_reader_expects_them() -> None:
    written = {kind: KINDS[kind](VALUES[kind], catalogue._signs("en")) for kind in KINDS}
    assert written == {
        "count": "1,942", "number": "5", "decimal": "1.33", "signed": "−0.133", "percent": "46 %",
        "of100": "10", "risk": "8.0 %", "name": "Melanoma", "names": "a, b and c",
        "share": "3.1 % (95 % interval 0.8 to 7.9 %, 64 images)", "cell": "46 %",
        "either": "a or b", "shares": "Nevus 67 % and Wart 33 %", "tally": "2 Nevus and 1 Wart",
        "date": "04 March 2026",
        "time": "04 March 2026, 05:06 UTC", "day": "04 Mar 2026",
        "moment": "04 Mar 2026, 05:06 UTC",
        "seconds": "04 March 2026, 05:06:07 UTC",
    }  # fmt: skip
    assert [percent(share) for share in (1.0, 0.991, 0.99, 0)] == [
        "> 99 %",
        "> 99 %",
        "99 %",
        "< 1 %",
    ]
    assert "less than 1 % of" in text("because_alone", name="x", share=0.001)
    of_100 = {0.0: "0", 0.001: "fewer than 1", 0.106: "11", 0.999: "more than 99", 1.0: "100"}
    for share, words in of_100.items():
        assert (
            text("errors_raised", raised=share) == f"It called {words} of 100 other images urgent."
        )
    one = SHARE.model_copy(update={"pictures": 1})
    assert share_text(one).endswith("1 image)")
    close = told_apart(0.2999, 0.3)
    assert text("because_below", risk=close[0], least=close[1]).count(
        "29.990 %, below the 30.000 %"
    )
    plain = told_apart(0.1648, 0.043)
    assert text("because_below", risk=plain[0], least=plain[1]).count("16 %, below the 4 %")
    assert told_apart(0.044, 0.041)[1].digits == 1
    assert told_apart(0.3, 0.0015)[1].digits == 1  # a threshold is never "less than 1 %"
    assert percent(0.125) == "13 %", "halves round up"
    shares = [(name, 0.15) for name in "abcdefg"]
    assert "e 15 % and 2 others together 30 %" in text("mix_calibration", shares=shares)
    assert joined("A.", "", None, "B.") == "A. B."


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("no_such_sentence", {}),
        ("because_follows", {}),
        ("because_follows", {"name": "x", "more": 1}),
        ("because_follows", {"name": 3}),
        ("knows", {"n": 1.5}),
        ("knows", {"n": True}),
        ("errors_raised", {"raised": "many"}),
        ("because_urgent", {"name": "x", "risk": 0.1, "least": 0.2}),
    ],
)
def test_a_wrong_key_or_value_is_an_error_of_the_code(key: str, values: dict[str, Any]) -> None:
    with pytest.raises(CatalogueError):
        text(key, **values)


def test_a_count_chooses_the_form() -> None:
    assert text("knows", n=1) == "The model knows 1 condition and no other."
    assert text("knows", n=7) == "The model knows 7 conditions and no others."
    assert Sentence("one of {n:count}", "a").placeholders == {"n"}


def test_a_sentence_is_one_and_short() -> None:
    for key, form in forms():
        prose = re.sub(r"\{[a-z_]+:[a-z0-9]+\}|\([^)]*\)", "x", form)
        assert len(prose.split()) <= 25, (key, len(prose.split()))
        assert not re.search(r";|[a-z] [–—-] [a-z]", prose), key
        ends = re.findall(r"[.!?](?=\s|$)", prose)
        assert len(ends) <= 1, key
        if ends:
            assert prose[0].isupper() or prose.startswith(("x", "skindx")), key
            fragment = re.match(r"(Of|For|On|In|By|With|Without|Among|From|At|Since|To) ", prose)
            assert not fragment, (key, "a sentence begins with its subject")


def test_the_words_are_those_of_the_glossary() -> None:
    for key, form in forms():
        for other, word in WORDS.items():
            assert other not in form.lower(), (key, f"say {word!r}")


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in WHEEL.rglob("*.py"):
        if path.parent.name != "texts":
            yield path, ast.parse(path.read_text(encoding="utf-8"))


SCRIPTS = [*(WHEEL / "ui/page/assets").glob("*.js"), WHEEL / "ui/templates/answers.js"]


def keys_in_scripts() -> Iterator[str]:
    for path in SCRIPTS:
        for key in re.findall(r"[\"`](js_[a-z_${}.]+)[\"`]", path.read_text(encoding="utf-8")):
            start, computed, end = re.match(r"(\w*)(\$\{[\w.]+\})?(\w*)", key).groups()
            yield from (
                (one for one in sentences() if one.startswith(start) and one.endswith(end))
                if computed
                else (key,)
            )


def keys_in_templates() -> Iterator[str]:
    yield from (f"skin_{part}_{number}" for part in ("sun", "looks") for number in range(1, 7))
    yield from (f"ask_{question}" for question in QUESTIONS)
    yield from (f"item_{item}" for item in ITEMS)
    yield from (f"answer_{value}" for value in get_args(Answer))
    for path in WHEEL.rglob("*.jinja"):
        for call in re.findall(r"text\(([^)]*)", path.read_text(encoding="utf-8")):
            yield from re.findall(r'"([a-z0-9_]+)"', call)
            if "~" in call:  # the tiers, by their name
                yield from (f"tier_{tier}" for tier in ("urgent", "soon", "routine", "unknown"))
        yield from re.findall(r'"(step_[a-z]+)"', path.read_text(encoding="utf-8"))


def test_every_key_of_the_code_exists_and_every_key_is_used() -> None:
    known, called, named = set(sentences()), set(), set(keys_in_templates())
    called |= (said := set(keys_in_scripts()))
    named |= said
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.add(node.value)
            of_text = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if of_text and node.func.id == "text" and "texts.catalogue" in path.read_text():
                first = node.args[0]
                values = ast.walk(first) if isinstance(first, ast.IfExp) else [first]
                called |= {
                    one.value
                    for one in values
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                }
    named |= {f"{key}_group" for key in ("threshold_fitted", "threshold_soon")}  # by one suffix
    steps = {*get_args(Urgency), "soon_without_time", "without_time", "soon_cancer"}
    steps |= {"soon_now", "now"}
    named |= {f"advice_{step}{end}" for step in steps for end in ("", "_sooner")}
    named |= {f"tier_{tier}" for part in get_args(Tier) for tier in get_args(part)}
    called -= {"tier_"}  # the tiers, by their name
    assert called - known == set()
    assert known - named == set()


# An answer's sentence has words in a row; a label such as "ICD-10-CM C43" or an address has not.
_PROSE = re.compile(r"[a-z]{2,} [a-z]{2,} [a-z]{2,}")


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module that are neither documentation nor part of an error."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.Assert):
            skipped |= set(ast.walk(node))
        if isinstance(node, ast.Call):  # errors that are made to be raised, options, requirements
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in ("UserError", "Refused", "require_extra", "Field", "log_fault"):
                skipped |= set(ast.walk(node))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
    for node in ast.walk(tree):
        if node not in skipped and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


KEPT = {
    "intake.py",  # the questions of the form
    "photo_list.py",  # tables and submissions
    "answer_figure.py",  # the legend of a plot
}
"""Modules with words that are no answer's."""
NO_ANSWERS = {"Codes of skindx", "download it first", "check the path", COMPARISON.what, *REASONS}
"""Names of a coding scheme and of a folder, reasons of a table, and advice on files of the command
line."""


def test_no_sentence_of_an_answer_stands_outside_the_catalogue() -> None:
    outside = [
        f"{path.relative_to(WHEEL)}:{line}: {said[:60]}"
        for path, tree in modules()
        if str(path.relative_to(WHEEL)).startswith(ROOMS) and path.name not in KEPT
        for line, said in _strings(tree)
        if _PROSE.search(said) and said not in NO_ANSWERS
    ]
    assert outside == []


_WORDS = re.compile(r"[A-Za-z’']{2,} [A-Za-z’']+ [A-Za-z’']+|[A-Z][a-z]+ [a-z]+")
"""Three words of a template, or two of which the first begins a sentence."""


@pytest.mark.parametrize(
    "template",
    [*(WHEEL / "ui/templates").glob("*.jinja"), *(WHEEL / "scan").rglob("*.jinja")],
    ids=lambda one: one.name.partition(".")[0],
)
def test_no_words_of_a_page_stand_in_a_template(template: Path) -> None:
    code = template.read_text(encoding="utf-8")
    code = re.sub(r"<style>.*?</style>|<svg.*?</svg>|<pre.*?</pre>", " ", code, flags=re.S)
    code = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", "\n", code, flags=re.S)
    read_aloud = re.findall(r'(?:aria-label|alt|placeholder|title)="([^"]*)', code)
    outside = re.sub(r"<[^>]*>", "\n", code)
    found = [line.strip() for line in (*outside.splitlines(), *read_aloud) if _WORDS.search(line)]
    assert found == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda one: one.name)
def test_no_words_of_a_page_stand_in_a_script(script: Path) -> None:
    code = re.sub(
        r"^\s*//.*|\s// .*|/\* .*?\*/", "", script.read_text(encoding="utf-8"), flags=re.M
    )
    strings = re.findall(r"\"([^\"\n]*)\"|`([^`]*)`", code)
    whole = [one for pair in strings for one in pair if not one.startswith(".")]  # a selector
    words = re.compile(r"[A-Za-z]{2,} [a-z]{2,} [a-z]|^[A-Z][a-z]+( [a-z]+)+[.?…]?$")
    assert [one for one in whole if words.search(one)] == []


def test_a_script_gets_each_sentence_as_the_page_would_write_it() -> None:
    said = catalogue.script_sentences()
    assert said["sentences"]["js_photos"] == {"one": "{n} photo", "other": "{n} photos"}
    kinds = {
        kind
        for key in said["sentences"]
        for kind in re.findall(r":([a-z0-9]+)\}", sentences()[key].one + sentences()[key].other)
    }
    assert kinds <= {"count", "name", "names"}, "say.js writes no other kind"

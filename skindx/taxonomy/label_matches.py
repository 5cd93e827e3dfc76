"""What a class that somebody named means: its code, urgency and description, or a question.

Classes are matched to the shipped taxonomies and to the lexicon. A class that looks like a cancer
or an emergency and has no urgency is never passed on in silence.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from typing import cast

from skindx.core.errors import UserError
from skindx.taxonomy import (
    SkinClass,
    Taxonomy,
    Urgency,
    load_taxonomy,
    normalise,
    urgent_conditions,
)
from skindx.taxonomy.lexicon import (
    Rule,
    codes_in,
    entries,
    heading_of,
    is_one_name,
    means_something,
    plain_letters,
    words,
)

_IN_ORDER = ("skin100", "isic9")
"""Taxonomies in which a label is looked up; skin10 is a part of skin100."""
_LONGEST_ABBREVIATION = 5

_CANCER_CODE = re.compile(r"C\d|D0\d|D3[7-9]|D4[0-8]|2[A-D]|2E[0-6]|2F7")
"""Malignant, in situ or of uncertain behaviour, in ICD-10 and ICD-11."""
_CANCER = re.compile(
    r"melanom|[ck]ar[cz]inom|cancer|krebs|sar[ck]om|l[yi][mn](ph|f)om|mali[gn]|bos(e?)artig"
    r"|boesartig|metasta|blastom|spinaliom|basaliom|epit[h]?eliom|leu[ck]a?em|leucem"
    r"|m[yi][ck]os[ie]sfungoid|mycosefongoid|sezary|paget|bowen|er[yi]t(h)?roplas|merkel"
    r"|(k|qu)erato(a[ck])?(ak|ac)ant|insitu|kaposi"
    r"|squamous|basalcell|plattenepit|spinocel|precancer|prakan[zc]|praekan[zc]"
    r"|меланом|карцином|癌|肉腫|肉瘤|黑色素瘤|黒色腫"
)
_MISSPELT = ("melanoma", "carcinoma", "lymphoma", "sarcoma", "metastasis", "malignant")
_ALIKE = 0.85
"""Least similarity of a misspelt word (Ratcliff and Obershelp); melasma has 0.80 to melanoma."""
_GROWTH = re.compile(r"tumou?r|neoplas")
"""Words for growths, which count as a cancer unless the name holds the word benign."""
_BENIGN = re.compile(r"benign|gutartig|beni[ng]")
_EMERGENCY = re.compile(
    r"ne[ck]ro(ti[sz]|ly|sis|se)|anthrax|mil[tz]brand|calciphyla|fas[cz]i+ti|fasciite|stevens"
    r"|lyell|anap[hf]|anafil|angio(o)?edem|angioneur|angioodem|quin[ck]+e"
    r"|mening|purpur|petech|sepsis|septic|septi[ck]|gangr|pemp[hf]|penfigo"
    r"|zoster|shingles|gurtelrose|guertelrose|culebrilla|er[yi]sipel|wundrose|[cz]el+ulit|phlegm"
    r"|(ek|ec)[zc]e[mn]aherp|er[yi]t(h)?roderm|kawasaki|emergenc|notfall|urgen|scaldedskin"
    r"|drugreact|drugerupt|medicament|arzneimittelex|to[xj]i(co)?derm"
)
_SHORT_CANCER = re.compile("mel|mm|c?scc|bcc|akiec|lmm|alm|ssm|mcc|ctcl|dfsp|nmsc|iec|mal|mis")
_SHORT_EMERGENCY = re.compile("sjs|ten|dress|ssss|zona|burns?")
"""Abbreviations of emergencies, matched as whole words only."""
_NAMELESS = re.compile(
    r"true|t|yes|y|positive?|pos|cases?|patients?|abnormal|suspicious|suspect|affected|diseased?|sick"
    r"|wahr|ja|j|positiv|fall|faelle|krank|auffallig|vrai|oui|o|positif|cas|malade"
    r"|verdadero|si|s|positivo|caso|enfermo|[+]"
)
"""Classes that say that something was found, and not what."""
_NOTHING = re.compile(
    r"0+([.]0+)?|false|f|no?|negative?|neg|normal|healthy|controls?|unaffected|falsch|nein|negativ"
    r"|gesund|unauffallig|faux|non|negatif|sain|falso|negativo|sano|-|beni[gn]n?[aeo]?|ben|b"
    r"|gutartig|non?[ _-]?(cancer(ous)?|malignant)"
)
"""Labels of the other class, where one of two classes says that something was found."""
_KIND = re.compile(r"mali[gn]n?[aeo]?(nt)?|mal|m|p|bos(e?)artig|boesartig|cancer(ous)?|krebs")
"""Classes that say that a cancer was found, and not which."""
_HOLDER = re.compile(
    r"labels?|targets?|categor(y|ies)|groups?|types?|kategorie|gruppe|typ|diagnos[ie]s"
)
_NUMBER = re.compile(r"[-+]?(0x[0-9a-f]+|[\d.,:/%-]*\d[\d.,:/%-]*(e[-+]?\d+)?)")


@dataclass(frozen=True)
class ConditionMatch:
    """A class of a shipped taxonomy, or of the lexicon, that a label means."""

    taxonomy: str
    skin_class: SkinClass
    rule: Rule = field(default="its name", compare=False)
    """How the label says so."""

    @property
    def words(self) -> str:
        """The class, its code, its urgency and the rule, as a build lists them."""
        known = self.skin_class
        code = f"ICD-10 {known.icd10}" if known.icd10 else "no ICD-10 code"
        return f"{known.name} ({self.taxonomy}), {code}, {_tier(known.urgency)}, by {self.rule}"


def match(label: str) -> ConditionMatch | None:
    """Return what a label means in the shipped taxonomies or the lexicon; None for nothing."""
    if (titled := _titles().get(normalise(label))) and is_one_name(label):
        return titled
    heading, rule = heading_of(label)
    known = _titles().get(normalise(heading))
    for name in () if known else _IN_ORDER:
        skin_class, how = load_shipped(name).recognise_by(heading or label)
        if skin_class:
            known, rule = ConditionMatch(name, skin_class), rule if heading else how
            break
    if not known and heading:
        known = ConditionMatch("lexicon", lexicon_class(heading))
    exact = known and normalise(label) in map(normalise, _labels(known.skin_class))
    if exact and rule != "an abbreviation" and is_one_name(label):
        rule = "a synonym"
    return replace(known, rule=rule) if known else None


def match_class(label: str) -> SkinClass:
    """Return the class that a label means, or one that bears the label alone."""
    known = match(label)
    return known.skin_class if known else SkinClass(key="label", name=label or "?")


@cache
def _titles() -> Mapping[str, ConditionMatch]:
    """Return the shipped classes by their key and name, without synonyms."""
    return {
        normalise(title): ConditionMatch(name, skin_class)
        for name in reversed(_IN_ORDER)
        for skin_class in load_shipped(name).classes
        for title in (skin_class.key, skin_class.name)
    }


@cache
def known_conditions() -> tuple[ConditionMatch, ...]:
    """Return all conditions of the shipped taxonomies and the lexicon once, by name."""
    shipped = [
        ConditionMatch(name, skin_class)
        for name in _IN_ORDER
        for skin_class in load_shipped(name).classes
    ]
    shipped += [
        ConditionMatch("lexicon", lexicon_class(h))
        for h, entry in entries().items()
        if entry.urgency
    ]
    named = {normalise(one.skin_class.name): one for one in reversed(shipped)}
    return tuple(sorted(named.values(), key=lambda one: one.skin_class.name.casefold()))


@cache
def load_shipped(name: str) -> Taxonomy:
    """Return a shipped taxonomy, read once."""
    return load_taxonomy(name)


def lexicon_class(heading: str) -> SkinClass:
    """Return the class of a condition that no shipped taxonomy has."""
    entry = entries()[heading]
    return SkinClass(
        key=re.sub(r"\W+", "_", heading).capitalize(),
        name=heading[0].upper() + heading[1:],
        icd10=entry.icd10,
        urgency=cast(Urgency, entry.urgency or "unknown"),
        description=entry.description,
        synonyms=tuple(name for name in entry.names if normalise(name) != normalise(heading)),
    )


def described(named: Mapping[str, str]) -> list[SkinClass]:
    """Return the classes `named` (key -> label), with what their match knows of them.

    A class keeps its label as its name, unless that is a code or an abbreviation. No two classes
    share a label: what two matches claim, neither gets as a synonym.
    """
    matches = {key: match(label) for key, label in named.items()}
    taken = Counter(normalise(text) for pair in named.items() for text in set(pair))
    claimed = Counter(
        claim
        for known in matches.values()
        if known
        for claim in {normalise(text) for text in _labels(known.skin_class)}
    )
    classes = []
    for key, label in named.items():
        known, name = matches[key], label
        if known is None:
            classes.append(SkinClass(key=key, name=name))
            continue
        title = known.skin_class.name
        free = not taken[normalise(title)] and claimed[normalise(title)] == 1
        if free and (len(normalise(label)) <= _LONGEST_ABBREVIATION or codes_in(label)):
            name = title
        spoken: dict[str, str] = {}
        for text in _labels(known.skin_class):
            folded = normalise(text)
            if claimed[folded] == 1 and not taken[folded] and folded != normalise(name):
                spoken.setdefault(folded, text)
        classes.append(
            known.skin_class.model_copy(
                update={"key": key, "name": name, "synonyms": tuple(spoken.values())}
            )
        )
    return classes


def _labels(skin_class: SkinClass) -> tuple[str, ...]:
    return (skin_class.key, skin_class.name, *skin_class.synonyms)


def match_lines(named: Mapping[str, str], taxonomy: Taxonomy) -> list[str]:
    """Return what the classes `named` (key -> label) were matched to, in sentences.

    Then those with no match, and those that mean the same condition.
    """
    lines: list[str] = []
    unmatched: list[str] = []
    same: dict[str, list[str]] = {}
    for key, label in named.items():
        known = match(label)
        chosen = taxonomy[key].urgency
        given = (
            f"; urgency {chosen} as given" if known and chosen != known.skin_class.urgency else ""
        )
        if known:
            lines.append(f"class {label!r} is taken for {known.words}{given}.")
            same.setdefault(known.skin_class.name, []).append(label)
        else:
            unmatched.append(f"{label!r} ({_tier(chosen)})")
    lines += [
        f"{' and '.join(map(repr, twins))} mean {name} alike and stay {len(twins)} classes; a "
        "taxonomy given with --taxonomy joins them."
        for name, twins in same.items()
        if len(twins) > 1
    ]
    if unmatched:
        lines.append(
            f"no shipped taxonomy knows {', '.join(unmatched)}: no ICD-10 code; "
            "--urgency CLASS=urgent|soon|routine sets the urgency."
        )
    return lines


def _tier(urgency: Urgency) -> str:
    return "urgency unknown" if urgency == "unknown" else urgency


def with_urgencies(taxonomy: Taxonomy, urgencies: Mapping[str, Urgency]) -> Taxonomy:
    """Return the taxonomy with other urgencies, by any label of a class. Raises UserError."""
    chosen: dict[str, Urgency] = {}
    for label, urgency in urgencies.items():
        skin_class = taxonomy.recognise(label)
        if skin_class is None:
            known = ", ".join(taxonomy.keys[:10]) + (", …" if len(taxonomy.keys) > 10 else "")
            raise UserError(
                f"--urgency names {label!r}, which is not a class of these images; use one of "
                f"{known}."
            )
        if chosen.setdefault(skin_class.key, urgency) != urgency:
            raise UserError(
                f"--urgency gives the class {skin_class.key} twice; remove one of the two."
            )
    classes = tuple(
        each.model_copy(update={"urgency": chosen.get(each.key, each.urgency)})
        for each in taxonomy.classes
    )
    # Not model_copy: it would carry the label index along, with the classes as they were.
    return Taxonomy(
        name=taxonomy.name,
        title=taxonomy.title,
        reviewed_by=taxonomy.reviewed_by,
        classes=classes,
        unmapped=taxonomy.unmapped,
    )


def looks_like(skin_class: SkinClass) -> str:
    """Return "a cancer" or "an emergency" where code or names of a class say so, else ""."""
    if _is_nameless(skin_class):
        return "a cancer"
    labels = _labels(skin_class)
    codes = [
        skin_class.icd10.replace(".", ""),
        *(code for text in labels for code in codes_in(text)),
    ]
    tokens = {word for text in labels for word in words(text)}
    joined = {"".join(words(text)) for text in labels}
    cancer = (
        any(_CANCER_CODE.match(code) for code in codes)
        or any(_SHORT_CANCER.fullmatch(word) for word in tokens)
        or any(_CANCER.search(text) for text in joined)
        or any(get_close_matches(word, _MISSPELT, n=1, cutoff=_ALIKE) for word in tokens)
        or any(_GROWTH.search(text) and not _BENIGN.search(text) for text in joined)
    )
    emergency = (
        any(
            skin_class.icd10 and re.match(one.codes, skin_class.icd10)
            for one in urgent_conditions()
        )
        or any(_SHORT_EMERGENCY.fullmatch(word) for word in tokens)
        or any(_EMERGENCY.search(text) for text in joined)
    )
    return "a cancer" if cancer else "an emergency" if emergency else ""


def _is_nameless(skin_class: SkinClass) -> bool:
    """Tell whether a class names no condition but a number, or that something was found."""
    if skin_class.icd10 or skin_class.synonyms:
        return False
    text = plain_letters(skin_class.name).strip()
    saying = [word for word in words(text) if means_something(word) and not _HOLDER.fullmatch(word)]
    counted = any(map(str.isdigit, text)) and not saying
    return counted or bool(_NAMELESS.fullmatch(text) or _NUMBER.fullmatch(text))


def without_urgency(classes: Iterable[SkinClass]) -> dict[str, str]:
    """Return what each class without urgency looks like, of those that look dangerous."""
    classes = list(classes)
    target = binary_target(each.name for each in classes)
    return {
        each.key: kind
        for each in classes
        if each.urgency == "unknown"
        and (kind := looks_like(each) or (target and each.name == target.positive and "a cancer"))
    }


@dataclass(frozen=True)
class BinaryTarget:
    """Two classes of which one says that something was found, and not what: 0 and 1, benign and M.

    Whoever makes a dataset of them has to be asked for the name and the urgency of `positive`.
    """

    positive: str
    negative: str

    @property
    def question(self) -> str:
        """What to ask, in a sentence."""
        return (
            f"{self.positive!r} says that something was found, and {self.negative!r} that nothing "
            f"was: what is {self.positive!r} (a condition such as Melanoma, or Skin cancer), and "
            f"how urgent is it?"
        )

    @property
    def remedy(self) -> str:
        """How a recipe answers, as the end of a sentence."""
        return (
            f'write into the recipe what they mean, such as `labels: {{"{self.positive}": Skin '
            f'cancer, "{self.negative}": Benign}}` in its source with `urgency: {{Skin cancer: '
            f"urgent}}`"
        )


def binary_target(labels: Iterable[str]) -> BinaryTarget | None:
    """Return which of two labels says that something was found; None for other labels.

    For `skindx new` and the build: two such labels need a name and an urgency of the positive one.
    """
    two = sorted(set(labels))
    folded = [plain_letters(label).strip() for label in two]
    if len(two) != 2:
        return None
    for found, nothing in ((1, 0), (0, 1)):
        says = _NAMELESS.fullmatch(folded[found]) or _KIND.fullmatch(folded[found])
        number = _NUMBER.fullmatch(folded[found]) and not _NOTHING.fullmatch(folded[found])
        if _NOTHING.fullmatch(folded[nothing]) and (says or number):
            return BinaryTarget(two[found], two[nothing])
    return None


def _nameless_remedy(taxonomy: Taxonomy) -> str:
    """Return what names classes that name no condition; "" where all classes have names."""
    target = binary_target(each.name for each in taxonomy.classes)
    if target:
        return f"{target.question} To answer, {target.remedy}"
    numbers = [each.name for each in taxonomy.classes if _is_nameless(each)]
    if not numbers:
        return ""
    given = ", ".join(f'"{name}": NAME' for name in numbers[:3])
    more = ", …" if len(numbers) > 3 else ""
    return (
        f"write their names into the recipe, `labels: {{{given}{more}}}` in its source, and "
        f"`urgency: {{NAME: urgent}}` (or soon, routine) for names that no list knows"
    )


def nameless_notes(taxonomy: Taxonomy) -> list[str]:
    """Say which classes have an urgency and no name: an answer can say no more than their label."""
    target = binary_target(each.name for each in taxonomy.classes)
    names = [each.name for each in taxonomy.classes if _is_nameless(each)]
    names += [target.positive] if target and target.positive not in names else []
    if not names:
        return []
    shown = " and ".join(map(repr, names[:5]))
    remedy = target.remedy if target else _nameless_remedy(taxonomy)
    verb = "names" if len(names) == 1 else "name"
    return [f"{shown} {verb} no condition, and an answer can say no more than that: {remedy}."]


def check_urgencies(taxonomy: Taxonomy, remedy: str = "") -> None:
    """Raise UserError for a class that looks like a cancer or an emergency without urgency.

    `remedy` takes the place of the advice to give it on the command line.
    """
    missing = without_urgency(taxonomy.classes)
    if not missing:
        return
    first, kind = next(iter(missing.items()))
    more = f" (and so do {', '.join(list(missing)[1:6])})" if len(missing) > 1 else ""
    nameless = _is_nameless(taxonomy[first])
    looks = f"names no condition, may be {kind}" if nameless else f"looks like {kind}"
    target = binary_target(each.name for each in taxonomy.classes)
    calm = target.negative if target else None
    options = " ".join(
        f"--urgency {key}={'routine' if taxonomy[key].name == calm else 'urgent'}"
        for key in list(missing)[:3]
    )
    advice = f"give {options} (or soon, routine), or choose a --taxonomy that has it"
    if nameless and (named := _nameless_remedy(taxonomy)):
        advice = f"{named}; or {advice}"
    raise UserError(
        f"the class {first!r} {looks} but has no urgency{more}, so answers could not call it "
        f"urgent; {remedy or advice}."
    )

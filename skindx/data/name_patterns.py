"""Regular expressions of users, run on names of files in a time that no pattern can stretch.

RE2 (Cox, "Regular Expression Matching Can Be Simple And Fast", 2007) takes a time proportional to
the text. A pattern is translated for it where both engines answer alike; one with lookaround or
references to groups is run by `re`, in a child process under a limit of time.
"""

import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from skindx.core.errors import UserError
from skindx.workers.sandbox import Failure, Work, run_sandboxed, sandboxed
from skindx.workers.worker_process import SandboxLimits

LIMITS = SandboxLimits(timeout_s=5, memory_mb=1024)
"""Limits for one name."""
_LONGEST_S = 20.0
"""Most seconds for all names of a call, with a millisecond more for each."""
_CATEGORIES = {
    ops.CATEGORY_DIGIT: r"\p{Nd}",
    ops.CATEGORY_WORD: r"\p{L}\p{N}_",
    ops.CATEGORY_SPACE: r"\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}"
    r"\x{202f}\x{205f}\x{3000}",
}
"""What `re` takes for a digit, a letter and a space, as members of a class of RE2."""
_OPPOSITES = {
    ops.CATEGORY_NOT_DIGIT: ops.CATEGORY_DIGIT,
    ops.CATEGORY_NOT_WORD: ops.CATEGORY_WORD,
    ops.CATEGORY_NOT_SPACE: ops.CATEGORY_SPACE,
}
_PLACES = {
    ops.AT_BEGINNING: r"\A",
    ops.AT_BEGINNING_STRING: r"\A",
    ops.AT_END: r"\z",  # of a text without line ends
    ops.AT_END_STRING: r"\z",
}


def first_groups(pattern: str, names: Iterable[str]) -> dict[str, str | None]:
    """Return what the first group of a pattern finds in each name; None where it does not match.

    A group that takes no part in a match is "". Raises UserError for a pattern that takes too long
    for a name, which it states.
    """
    found: dict[str, str | None] = {}
    slow: list[str] = []
    search = _linear(pattern)
    for name in dict.fromkeys(names):
        # A line end has a meaning of its own for `re`, and RE2 reads UTF-8 alone.
        if search and "\n" not in name and _is_known(name):
            match = search(name)
            found[name] = (match.group(1) or "") if match else None
        else:
            slow.append(name)
    return found | (_in_child(pattern, slow) if slow else {})


def _is_known(name: str) -> bool:
    """Tell whether both engines know the letters of a name: surrogates and new ones they do not."""
    return name.isascii() or not any(unicodedata.category(char) in ("Cn", "Cs") for char in name)


def _linear(pattern: str) -> Callable[[str], Any] | None:
    """Return the search of RE2; None where it is not there, or would answer otherwise."""
    try:
        import re2
    except ImportError:  # of the extra `data`
        return None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(_translated(pattern), options).search  # type: ignore[no-any-return]
    except (_OtherwiseError, re2.error, RecursionError):
        return None


class _OtherwiseError(Exception):
    """RE2 has no such thing, or another meaning for it."""


def _translated(pattern: str) -> str:
    """Return a pattern of `re` as RE2 writes it. Raises _OtherwiseError."""
    tree = parser.parse(pattern)
    if tree.state.flags & ~re.UNICODE:
        raise _OtherwiseError  # of letters of either case each engine has its own idea
    return _sequence(tree)


def _sequence(items: Iterable[tuple[Any, Any]]) -> str:
    return "".join(_item(op, value) for op, value in items)


def _item(op: Any, value: Any) -> str:
    if op is ops.IN:
        return _class(value[value[0][0] is ops.NEGATE :], negated=value[0][0] is ops.NEGATE)
    if op is ops.BRANCH:
        return f"(?:{'|'.join(map(_sequence, value[1]))})"
    if op is ops.SUBPATTERN and not value[1] and not value[2]:
        return f"({'' if value[0] else '?:'}{_sequence(value[3])})"
    # What may be empty is repeated by each engine as often as it likes.
    if op in (ops.MAX_REPEAT, ops.MIN_REPEAT) and value[2].getwidth()[0]:
        low, high, body = value
        most = "" if high == ops.MAXREPEAT else high
        return f"(?:{_sequence(body)}){{{low},{most}}}{'?' * (op is ops.MIN_REPEAT)}"
    return _single(op, value)


def _single(op: Any, value: Any) -> str:
    if op is ops.LITERAL:
        return _letter(value)
    if op is ops.NOT_LITERAL:
        return f"[^{_letter(value)}]"
    if op is ops.ANY:
        return "."
    if op is ops.AT and value in _PLACES:
        return _PLACES[value]
    raise _OtherwiseError


def _class(members: Sequence[tuple[Any, Any]], *, negated: bool) -> str:
    if len(members) == 1 and members[0][1] in _OPPOSITES:
        return _class([(ops.CATEGORY, _OPPOSITES[members[0][1]])], negated=not negated)
    return f"[{'^' * negated}{''.join(_member(*one) for one in members)}]"


def _member(op: Any, value: Any) -> str:
    if op is ops.LITERAL:
        return _letter(value)
    if op is ops.RANGE:
        return f"{_letter(value[0])}-{_letter(value[1])}"
    if op is ops.CATEGORY and value in _CATEGORIES:
        return _CATEGORIES[value]
    raise _OtherwiseError  # RE2 has no class within a class


def _letter(code: int) -> str:
    return rf"\x{{{code:x}}}"


def _in_child(pattern: str, names: Sequence[str]) -> dict[str, str | None]:
    """Return the answers of `re`. Raises UserError."""
    places = [Path(str(number)) for number in range(len(names))]
    job = {"pattern": pattern, "names": list(names), "longest_s": _LONGEST_S + len(names) / 1000}
    found: dict[str, str | None] = {}
    for at, answer in run_sandboxed(name_matching, job, places, LIMITS, workers=1):
        if isinstance(answer, Failure) or not answer:
            raise UserError(
                f"the pattern {pattern!r} takes too long on the name {names[at][:200]!r}; remove "
                "nested repetitions such as (a+)+ from the pattern."
            )
        found[names[at]] = answer[0]
    return found


def _prepare() -> None:
    pass


@sandboxed(_prepare)
def name_matching(job: dict[str, Any]) -> Work:
    """Return what answers each position among the job's names: a list of one, or [] if late."""
    search, names = re.compile(job["pattern"]).search, job["names"]
    ends = time.monotonic() + job["longest_s"]

    def work(paths: Sequence[Path]) -> Any:
        answers: list[list[str | None]] = []
        for path in paths:
            if time.monotonic() > ends:
                answers.append([])
            else:
                match = search(names[int(path.name)])
                answers.append([(match.group(1) or "") if match else None])
            yield None
        yield answers

    return work

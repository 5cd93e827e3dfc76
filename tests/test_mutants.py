"""The list of planted faults fits the code, so that `make test-mutants` can plant each."""

import ast
import re
import shlex

import pytest
from mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_fault_can_be_planted_and_its_tests_are_there(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.line) == 1
    planted = text.replace(mutant.line, mutant.instead)
    if mutant.file.endswith(".py"):
        ast.parse(planted)
    named = ""
    words = iter(shlex.split(mutant.tests))
    for word in words:
        if word == "-k":
            for part in re.findall(r"\w+", next(words)):
                assert part in {"and", "or", "not"} or part in named, f"no test is called {part}"
            continue
        path, *names = word.split("::")
        files = sorted((ROOT / path).rglob("*.py")) if (ROOT / path).is_dir() else [ROOT / path]
        named = "".join(file.read_text(encoding="utf-8") for file in files)
        if names:
            assert f"def {names[-1].partition('[')[0]}(" in named, word

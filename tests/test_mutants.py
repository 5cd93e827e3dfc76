"""The list of planted faults fits the code, so that `make test-mutants` can plant each."""

import ast
from pathlib import Path

import pytest
from mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_fault_can_be_planted_and_its_tests_are_there(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.line) == 1
    planted = text.replace(mutant.line, mutant.instead)
    ast.parse(planted)
    for test in mutant.tests.split():
        path, *names = test.split("::")
        file = Path(ROOT, path)
        assert file.exists(), path
        if names:
            name = names[-1].partition("[")[0]
            assert f"def {name}(" in file.read_text(encoding="utf-8"), test

"""Which translated sentences are stale: their English sentence is another now, or is gone.

`tests/texts/translated.json` holds for each language a hash of the English sentence that each of
its sentences was translated from.

    python tests/support/stale_texts.py            prints the keys that are stale, a line each
    python tests/support/stale_texts.py es KEY…    notes that these are translated as they stand now
    python tests/support/stale_texts.py es --all   notes it of all keys
"""

import hashlib
import json
import sys
from pathlib import Path

from skindx.texts.catalogue import LANGUAGE, languages, sentences

NOTED = Path(__file__).parents[1] / "texts" / "translated.json"


def hashes() -> dict[str, str]:
    """Return a hash of each English sentence."""
    return {
        key: hashlib.sha256(f"{one.one}\n{one.other}".encode()).hexdigest()[:12]
        for key, one in sentences(LANGUAGE).items()
    }


def noted() -> dict[str, dict[str, str]]:
    """Return by language and key the hash of the sentence that was translated."""
    found: dict[str, dict[str, str]] = json.loads(NOTED.read_text(encoding="utf-8"))
    return found


def stale(language: str) -> list[str]:
    """Return the keys whose English sentence is not the one that was translated."""
    now, then = hashes(), noted().get(language, {})
    return sorted(key for key in {*now, *then} if now.get(key) != then.get(key))


def note(language: str, keys: list[str]) -> None:
    """Note that these keys are translated as they stand now; a key that is gone is left out."""
    now, all_noted = hashes(), noted() if NOTED.exists() else {}
    before = all_noted.get(language, {})
    chosen = {*now, *before} if keys == ["--all"] else set(keys)
    kept = {key: one for key, one in before.items() if key in now}
    kept |= {key: now[key] for key in chosen if key in now}
    all_noted[language] = dict(sorted(kept.items()))
    NOTED.write_text(json.dumps(all_noted, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [language, *keys] if keys:
            note(language, keys)
        case []:
            for language in languages()[1:]:
                for key in stale(language):
                    print(f"{language} {key}: {sentences(LANGUAGE).get(key)}")
        case _:
            sys.exit(__doc__)

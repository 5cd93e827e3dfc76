"""English that is left in what should be in Spanish, found by words that Spanish has not."""

import re

ENGLISH = re.compile(
    r"\b(the|of|and|is|are|was|were|this|that|with|not|from|your|photos?|which|by|or|for|it|its|an|"
    r"to|see|in|on|condition|urgent|soon|routine|unknown|image|images|left|weeks|years|test)\b",
    re.IGNORECASE,
)


def english_in(said: str) -> list[str]:
    """Return each such word with what stands around it."""
    return [said[max(0, one.start() - 60) : one.end() + 60] for one in ENGLISH.finditer(said)]

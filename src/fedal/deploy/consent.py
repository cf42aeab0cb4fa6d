"""What may leave a site. The server chooses the method; the site decides what that method may reveal.

A site computes what a method reveals from its own code, never from what the server says, and asks before it touches
private data.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedal.config import REQUIREMENTS
from fedal.deploy.refusals import Code, Refused
from fedal.errors import ConfigError, did_you_mean
from fedal.messages import LEAK_WORDS, OUTPUTS_ONLY, Leak, in_words
from fedal.methods.method import Method

SINGLE = {str(leak.name).lower().replace("_", "-"): leak for leak in LEAK_WORDS}
ALLOWANCES = {word: ~forbidden for word, forbidden in REQUIREMENTS.items()} | SINGLE
"""Words of `--allow`: those of the setting `require`, and every kind of content by its own name."""


def parse_allowance(words: Iterable[str]) -> Leak:
    """What these words allow together. Outputs on public data are always allowed: every exchange needs them."""
    allowed = OUTPUTS_ONLY
    for word in words:
        if word not in ALLOWANCES:
            hint = did_you_mean(word, ALLOWANCES)
            raise ConfigError(f"--allow {word}: not a kind of content. {hint}Choose from {', '.join(ALLOWANCES)}.")
        allowed |= ALLOWANCES[word]
    return allowed


def refuse_unallowed(method: Method, allowed: Leak) -> None:
    """Refuses a method that reveals more than the site allows."""
    excess = method.reveals & ~allowed
    if excess:
        words = ",".join(word for word, leak in SINGLE.items() if leak in excess)
        raise Refused(
            Code.NOT_ALLOWED,
            f"the server runs {method.name}, which reveals {in_words(excess)}; this site does not allow that. "
            f"Nothing was sent. If its operator agrees, join again with --allow {words}.",
        )

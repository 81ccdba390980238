"""Whether a verdict is the judge's own: one that it quotes from a text counts for nothing."""

from __future__ import annotations

import functools
import json
import re
from contextlib import suppress
from typing import Any, Final

from rolellm.evaluation.judging.asking.fences import read_fenced
from rolellm.llm.json_scan import scan
from rolellm.llm.model import Request, UnacceptableError

_THOUGHTS_END: Final = "</think>"
# Words that lead to a verdict without naming one or telling whose it is. With any other, nobody can say without
# understanding the text whether the object is quoted, so a longer list would be a worse guard.
_HARMLESS: Final = re.compile(
    r"(?:[\s:：,，.。!！*#`-]|here['’]s\b|\b(?:sure|certainly|ok|okay|here|below|is|my|the|a|as|in|final|verdict|"
    r"judge?ment|evaluation|ranking|json|object|format|done)\b|好的|当然|以下|下面|是|为|我的|最终|评判|裁决|排名|结果|如下)*+",
    re.IGNORECASE,
)
_TEXT: Final = r'"(?:[^"\\]|\\.)*+"'
# Tried at every place, also within what was found: a stray quotation mark before it hides no member.
_MEMBER: Final = re.compile(rf"(?<!\\)(?=({_TEXT})\s*+:\s*+({_TEXT}))", re.DOTALL)
_EXTRA_COMMA: Final = re.compile(r",(?=\s*[}\]])")


def copied_from(request: Request, reply: str) -> str | None:
    """The name of the shown text that a reply has a reason from, such as ``answer A``; ``None`` for none.

    A judge whose reason is, word for word, that of a verdict that it was shown repeats that verdict. The order of keys,
    escapes and white space make no difference. Thoughts marked as such may quote anything.
    """
    said = _reasons(reply.rpartition(_THOUGHTS_END)[2])
    shown = read_fenced(request.messages[-1].content) if said else {}
    return next((name for name, text in shown.items() if said & _reasons(text)), None)


def refuse_prose(reply: str) -> None:
    """Refuse a reply that is more than one JSON object, at most in a code fence and with words that say nothing.

    Raises:
        UnacceptableError: With the kind ``malformed``.
    """
    text = reply.rpartition(_THOUGHTS_END)[2]
    start = max(text.find("{"), 0)
    end = scan(text, start).end
    if not _HARMLESS.fullmatch(text[:start] + text[end:]):
        raise UnacceptableError("says more than its verdict, which it may quote or contradict", "malformed")
    json.loads(_EXTRA_COMMA.sub("", text[start:end]), strict=False, object_pairs_hook=_different)


def _different(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise UnacceptableError("says more than one thing under one key", "malformed")


# A row's texts are shown in both orders and in every list.
@functools.lru_cache(maxsize=256)
def _reasons(text: str) -> frozenset[str]:
    """What JSON in a text, be it whole or broken, has under the key ``reason``."""
    found = set()
    for key, value in _MEMBER.findall(text):
        with suppress(ValueError):
            if json.loads(key) == "reason":
                found.add("".join(json.loads(value, strict=False).split()))
    return frozenset(found)

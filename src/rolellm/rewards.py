"""Reward functions under TRL's signature, for ``reward_funcs`` of its GRPO trainer and of rolellm's recipes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolellm.scoring.rouge import rouge_l


def rouge(
    completions: Sequence[Any],
    references: Sequence[Sequence[str]],
    language: Sequence[str] | None = None,
    **_: Any,
) -> list[float | None]:
    """Reward likeness to the role's own replies: Rouge-L (F1) with the best of a row's references.

    A reply that copies common words of the role without answering is rewarded, too; so is one that is as long as the
    references whatever it says.

    >>> rouge(["Aye, the sea calls me."], references=[["Aye, the sea calls."]])
    [0.888...]

    Args:
        completions: Replies, as texts or lists of messages.
        references: The references of each reply's row; ``None`` for a row without any.
        language: The language of each row; English by default.

    Returns:
        One number from 0 to 1 each.
    """
    languages = language or ["en"] * len(completions)
    return [
        rouge_l([_text(reply)], [list(known)], language=tongue)[0].f1 if known else None
        for reply, known, tongue in zip(completions, references, languages, strict=True)
    ]


def length(completions: Sequence[Any], **_: Any) -> list[float]:
    """Reward brevity: 1 for an empty reply, down to 0 at 400 characters. It is of no use alone: say nothing, and win.

    >>> length(["a" * 100, "a" * 1000])
    [0.75, 0.0]

    Args:
        completions: Replies, as texts or lists of messages.

    Returns:
        One number from 0 to 1 each.
    """
    return [max(0.0, 1 - len(_text(reply)) / 400) for reply in completions]


def _text(reply: Any) -> str:
    return reply if isinstance(reply, str) else str(reply[-1]["content"])

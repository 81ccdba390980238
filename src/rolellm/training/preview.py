"""What training sees: every token of a row, trained or not, in color, as plain text or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rolellm.training.examples import Example

if TYPE_CHECKING:
    from rich.text import Text
    from transformers import PreTrainedTokenizerBase


def list_tokens(example: Example, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """The tokens of an example, in order: ``id``, ``text``, and whether the loss falls on it (``trained``).

    The parts of a character cut over several tokens read as U+FFFD, as the tokenizer decodes them.
    """
    read = len(example.prompt_ids)
    return [
        {"id": token, "text": str(tokenizer.decode([token])), "trained": index >= read}
        for index, token in enumerate(example.input_ids)
    ]


def to_dict(example: Example, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """An example as one JSON object: ``row_id``, ``reference``, the two texts, and ``tokens``."""
    return {
        "row_id": example.row_id,
        "reference": example.reference,
        "prompt": tokenizer.decode(list(example.prompt_ids)),
        "trained_text": tokenizer.decode(list(example.reply_ids)),
        "tokens": list_tokens(example, tokenizer),
    }


def format_plain(examples: Iterable[Example], tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Plain text for pipes: a heading an example, then a line a token (``+`` trained or ``.`` not, id, text)."""
    for example in examples:
        yield _format_heading(example)
        for token in list_tokens(example, tokenizer):
            yield f"{'+' if token['trained'] else '.'} {token['id']:>7} {token['text']!r}"


def format_rich(examples: Iterable[Example], tokenizer: PreTrainedTokenizerBase) -> Text:
    """The same for people: running text, trained tokens in bold green, the others dim, tokens told apart by shade."""
    from rich.text import Text

    out = Text()
    for example in examples:
        out.append(_format_heading(example) + "\n", style="bold")
        # Pieces of one character mean something only together, so runs are decoded whole where a token alone is torn.
        for torn, run in groupby(
            enumerate(list_tokens(example, tokenizer)), key=lambda item: "\ufffd" in item[1]["text"]
        ):
            group = list(run)
            parts = [[token for _, token in group]] if torn else [[token] for _, token in group]
            for offset, part in enumerate(parts):
                text = str(tokenizer.decode([token["id"] for token in part]))
                shade = "underline" if (group[0][0] + offset) % 2 else ""
                out.append(text, style=f"{'bold green' if part[0]['trained'] else 'dim'} {shade}".strip())
        out.append("\n\n")
    return out


def _format_heading(example: Example) -> str:
    trained, read = len(example.reply_ids), len(example.prompt_ids)
    return f"row {example.row_id}, reference {example.reference}: {read} tokens read, {trained} trained"

"""A preview of training: the tokens of a few rows, trained or only read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rolellm.core.errors import RecipeError
from rolellm.core.result import Result
from rolellm.training.examples import IGNORED, Example
from rolellm.training.recipe import Recipe
from rolellm.training.train import prepare, read_replies

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class PreviewToken:
    """A token of an example.

    Attributes:
        id: Its number.
        text: What it decodes to; a part of a character reads as U+FFFD.
        trained: Whether the loss falls on it.
    """

    id: int
    text: str
    trained: bool


@dataclass(frozen=True, slots=True)
class PreviewExample:
    """An example as training sees it.

    Attributes:
        row_id: Its row.
        prompt: The text that is only read, up to the first reply.
        trained_text: The text that is trained.
        tokens: The tokens of both, in order.
    """

    row_id: str
    prompt: str
    trained_text: str
    tokens: Sequence[PreviewToken]

    @classmethod
    def of(cls, example: Example, tokenizer: PreTrainedTokenizerBase) -> PreviewExample:
        """Decode an example."""
        tokens = []
        trained_ids = []
        for token, label in zip(example.input_ids, example.labels, strict=True):
            text = str(tokenizer.decode([token]))
            tokens.append(PreviewToken(token, text, label != IGNORED))
            if label != IGNORED:
                trained_ids.append(token)
        prompt = str(tokenizer.decode(list(example.prompt_ids)))
        reply = str(tokenizer.decode(trained_ids))
        return cls(example.row_id, prompt, reply, tokens)


@dataclass(frozen=True, slots=True, repr=False)
class Preview(Result):
    """The examples that a recipe will train on.

    Attributes:
        examples: The examples.
    """

    examples: Sequence[PreviewExample]

    def remarks(self) -> list[str]:
        """Return a heading for each example and a line for each token: read (.) or trained (+), id, text."""
        lines = []
        for example in self.examples:
            trained = sum(token.trained for token in example.tokens)
            read = len(example.tokens) - trained
            lines.append(f"{example.row_id}: {read} tokens read (.), {trained} trained (+)")
            for token in example.tokens:
                mark = "+" if token.trained else "."
                lines.append(f"{mark} {token.id:>7} {token.text!r}")
        return lines


def preview(recipe: Recipe, out: Path, count: int) -> Preview:
    """Show the first references of a recipe's first rows as training will see them.

    Args:
        recipe: The recipe.
        out: The run's folder, which may already hold a built base.
        count: Rows to show.

    Raises:
        RecipeError: For a trainer that learns no replies, and as for `rolellm.training.train.prepare`.
    """
    if recipe.training.trainer != "sft":
        raise RecipeError(f"--preview shows training by trainer: sft, not {recipe.training.trainer}")
    recipe, rows = read_replies(recipe)
    prepared = prepare(recipe, out, rows)
    firsts = (example for example in prepared.examples if example.reference == 0)
    examples = []
    for example in islice(firsts, count):
        examples.append(PreviewExample.of(example, prepared.tokenizer))
    return Preview(examples)

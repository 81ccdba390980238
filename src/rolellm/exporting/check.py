"""The check that closes an export: greedy replies and the likeliest next tokens of what was written and of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rolellm.core.errors import require
from rolellm.core.records import Language
from rolellm.models.load import load_part
from rolellm.models.local_model import LocalModel

#: Questions that any character can be asked.
_QUESTIONS: Final[dict[Language, tuple[str, ...]]] = {
    "en": (
        "Who are you?",
        "Where do you live?",
        "What do you want most of all?",
        "Whom do you trust?",
        "What did you do this morning?",
        "What are you afraid of?",
        "Tell me something that nobody else knows.",
        "What would you say to a stranger at your door?",
    ),
    "zh": (
        "你是谁？",
        "你住在哪里？",
        "你最想要的是什么？",
        "你信任谁？",
        "今天早上你做了什么？",
        "你害怕什么？",
        "告诉我一件别人都不知道的事。",
        "门口来了个陌生人，你会说什么？",
    ),
}
_REPLY: Final = 24
_LIKELIEST: Final = 5

#: Replies greedily to a prompt's tokens: the reply's tokens, and the likeliest first tokens, likeliest first.
Answer = Callable[[Sequence[int]], tuple[list[int], list[int]]]


@dataclass(frozen=True, slots=True)
class ExportCheck:
    """What was written, compared with the run.

    Attributes:
        by: What answered: ``transformers`` or ``llama.cpp``.
        prompts: Number of prompts.
        replies: Number of greedy replies that are equal to the token.
        first_tokens: Number of prompts whose likeliest next token is the same.
        orders: Number of prompts whose five likeliest next tokens are the same, in the same order.
        difference: The first difference, in words; empty where there is none.
    """

    by: str
    prompts: int
    replies: int
    first_tokens: int
    orders: int
    difference: str = ""

    @property
    def has_passed(self) -> bool:
        """True if at most one likeliest next token differs, as rounding to 16 bits may bring."""
        return self.first_tokens >= self.prompts - 1

    def __str__(self) -> str:
        text = (
            f"Checked by {self.by}: {self.replies} of {self.prompts} greedy replies equal the run's, and the "
            f"{_LIKELIEST} likeliest next tokens are in the same order for {self.orders}"
        )
        return f"{text}; {self.difference}." if self.difference else f"{text}."


def check_export(run: LocalModel, system: str, language: Language, written: Path, form: str) -> ExportCheck:
    """Compare what was written with the run, on eight prompts with the role's system turn.

    Args:
        run: The model that was exported.
        system: The role's system turn; empty for none.
        language: The language of the questions.
        written: A folder of merged weights, or a GGUF file.
        form: ``merged`` or ``gguf``.
    """
    prompts = []
    for question in _QUESTIONS[language]:
        messages = [{"role": "user", "content": question}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        prompts.append(run.encode(messages))
    expected = [run.decode_greedily(prompt, _REPLY, _LIKELIEST) for prompt in prompts]
    context = max(map(len, prompts)) + _REPLY
    with _open_written(written, form, run, context) as (by, answer):
        answers = [answer(prompt) for prompt in prompts]
    replies = first_tokens = orders = 0
    difference = ""
    for number, (wanted, given) in enumerate(zip(expected, answers, strict=True), start=1):
        replies += wanted[0] == given[0]
        first_tokens += wanted[1][0] == given[1][0]
        orders += wanted[1] == given[1]
        if not difference and wanted[0] != given[0]:
            difference = _describe_difference(run, number, wanted[0], given[0])
    return ExportCheck(by, len(prompts), replies, first_tokens, orders, difference)


def _describe_difference(run: LocalModel, number: int, wanted: Sequence[int], given: Sequence[int]) -> str:
    pairs = zip([*wanted, None], [*given, None], strict=False)
    place, (own, other) = next((place, pair) for place, pair in enumerate(pairs, start=1) if pair[0] != pair[1])
    texts = [repr(run.tokenizer.decode([token])) if token is not None else "the end" for token in (own, other)]
    return f"reply {number} first differs at token {place}, {texts[1]} in place of {texts[0]}"


@contextmanager
def _open_written(written: Path, form: str, run: LocalModel, context: int) -> Iterator[tuple[str, Answer]]:
    if form == "gguf" and find_spec("llama_cpp") is not None:
        yield from _open_llama_cpp(written, run.stops, context)
        return
    if form == "gguf":
        require("gguf", extra="export")
        from transformers import AutoModelForCausalLM

        weights = load_part("GGUF", AutoModelForCausalLM, written.parent, gguf_file=written.name, dtype="float32")
        model = run.with_weights(weights)
    else:
        model = LocalModel(str(written))
    yield "transformers", lambda prompt: model.decode_greedily(prompt, _REPLY, _LIKELIEST)


def _open_llama_cpp(written: Path, stops: Sequence[int], context: int) -> Iterator[tuple[str, Answer]]:
    import llama_cpp
    import numpy as np

    llama = llama_cpp.Llama(str(written), n_ctx=context, verbose=False)

    def list_likeliest() -> list[int]:
        logits = llama_cpp.llama_get_logits_ith(llama.ctx, -1)
        scores = np.ctypeslib.as_array(logits, shape=(llama.n_vocab(),))
        likeliest: list[int] = np.argsort(-scores, kind="stable")[:_LIKELIEST].tolist()
        return likeliest

    def answer(prompt: Sequence[int]) -> tuple[list[int], list[int]]:
        llama.reset()
        llama.eval(prompt)
        first = list_likeliest()
        reply = [first[0]]
        while len(reply) < _REPLY and reply[-1] not in stops:
            llama.eval(reply[-1:])
            reply.append(list_likeliest()[0])
        return reply, first

    try:
        yield "llama.cpp", answer
    finally:
        llama.close()

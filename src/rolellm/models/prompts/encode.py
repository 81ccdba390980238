"""From chat messages to tokens: the one way in, for training and for inference, so that both see the same prompt.

Text inside a message never becomes a special token: a question that contains ``</s>`` or ``<|im_end|>`` is sent as
those characters. Only the chat template writes special tokens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rolellm.core.errors import ModelError
from rolellm.models.prompts.render import load_chat_template
from rolellm.models.prompts.settle import REPLY, TURNS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Whether a prompt is too long is checked where that matters, and said in words of ours.
_QUIET: Final = {"verbose": False}
#: The most tokens of a reply in a talk, by default (our choice).
REPLY_TOKENS: Final = 400


def limit_prompt(context: int, reply: int = REPLY_TOKENS) -> int:
    """The most tokens of a talk's prompt: a long reply gets a quarter of the context."""
    return context - min(reply, context // 4)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> list[int]:
    """The tokens that ask a model for its reply, generation prompt included.

    For ordinary text they equal ``tokenizer.apply_chat_template(messages, add_generation_prompt=True)``. A tokenizer
    without a chat template gets the ``rolellama`` form, with its own start and end tokens.

    Args:
        tokenizer: The model's tokenizer.
        messages: Objects with ``role`` and ``content``, as from `rolellm.models.prompts.render.make_messages`.

    Returns:
        Token ids, without padding.

    Raises:
        ModelError: When the tokenizer has no end token, or its chat template refuses the messages.
    """
    options: dict[str, Any] = {"add_generation_prompt": True, "sanitize_control_tokens": True}
    ids: list[int] = _apply(tokenizer, messages, **options)["input_ids"]
    return ids


class PromptEncoder:
    """`encode_prompt` for many prompts that begin alike: a beginning is tokenized once.

    A prompt is cut at the last special token before its last message's text, where a tokenizer starts afresh. That the
    parts give the tokens of the whole is checked for each beginning; where they do not, or where a message holds a
    special token as text, prompts are tokenized whole.

    Args:
        tokenizer: The model's tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        # Gemma's added tokens include runs of newlines, which templates and messages contain as ordinary text.
        added = [text for token in tokenizer.added_tokens_decoder.values() if (text := str(token)).strip()]
        # Gemma has 6,400 of them; the lookahead tries them only where one can begin.
        first = "".join(sorted({re.escape(text[0]) for text in added}))
        tried = "|".join(map(re.escape, sorted(added, key=len, reverse=True)))
        self._special = re.compile(f"(?=[{first}])(?:{tried})" if added else r"(?!)")
        # By the messages before the last, what prompts begin with and its tokens; empty where they cannot be cut.
        self._heads: dict[tuple[str, ...], tuple[str, list[int]]] = {}

    def __call__(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The tokens that ask a model for its reply; see `encode_prompt`, which this equals.

        Raises:
            ModelError: As `encode_prompt` does.
        """
        *before, last = messages
        key = tuple(text for message in before for text in (message["role"], message["content"]))
        if key not in self._heads:
            self._heads[key] = self._encode_head(before, last["role"])
        head, ids = self._heads[key]
        if ids and not self._special.search(last["content"]):
            text = self._render(messages)
            if text.startswith(head):
                return [*ids, *self._plain(text[len(head) :])]
        return encode_prompt(self._tokenizer, messages)

    def _encode_head(self, before: list[dict[str, str]], role: str) -> tuple[str, list[int]]:
        if any(self._special.search(message["content"]) for message in before):
            return "", []
        first, second = ([*before, {"role": role, "content": content}] for content in ("a", "b"))
        text = self._render(first)
        common = os.path.commonprefix([text, self._render(second)])  # noqa: RUF071  # Character by character is meant.
        head = common[: max((match.start() for match in self._special.finditer(common)), default=0)]
        ids = self._plain(head)
        expected = encode_prompt(self._tokenizer, first)
        return (head, ids) if [*ids, *self._plain(text[len(head) :])] == expected else ("", [])

    def _render(self, messages: Sequence[dict[str, str]]) -> str:
        return str(_apply(self._tokenizer, messages, add_generation_prompt=True, tokenize=False))

    def _plain(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, **_QUIET)["input_ids"]
        return ids


def encode_replies(tokenizer: PreTrainedTokenizerBase, replies: Sequence[str]) -> list[list[int]]:
    """The tokens of replies as they go on from their prompts, no special token, no end token.

    White space that the chat template writes between the prompt and a reply goes with the reply: ChatGLM3 and GLM-4 ask
    for a reply by ``<|assistant|>`` alone, and write ``<|assistant|>`` and a new line before one.

    Args:
        tokenizer: The model's tokenizer.
        replies: Texts, kept to the letter, white space included.

    Returns:
        Token ids, one list a reply, in order.
    """
    if not replies:
        return []

    def encode(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids

    lead = _find_lead(tokenizer)
    texts = [lead + reply for reply in replies]
    (probe,) = encode([lead + REPLY])
    if lead and _get_tokens_after_prompt(tokenizer, len(probe)) == probe:
        return encode(texts)  # The prompt ends in a special token, so what follows is cut as a text of its own.
    # SentencePiece tokenizers put a space before whatever opens a text; a reply opens nothing, the prompt did.
    (newline,) = encode(["\n"])
    encoded = encode([f"\n{text}" for text in texts])
    # Where the reply's own first characters join the newline's token, the reply is taken alone.
    return [
        ids[len(newline) :] if ids[: len(newline)] == newline else encode([text])[0]
        for ids, text in zip(encoded, texts, strict=True)
    ]


def _find_lead(tokenizer: PreTrainedTokenizerBase) -> str:
    """White space that the chat template writes between a prompt and its reply."""
    prompt = str(_apply(tokenizer, TURNS[:2], tokenize=False, add_generation_prompt=True))
    before = str(_apply(tokenizer, TURNS, tokenize=False)).rpartition(REPLY)[0]
    lead = before[len(prompt) :] if before.startswith(prompt) else ""
    return "" if lead.strip() else lead


def _get_tokens_after_prompt(tokenizer: PreTrainedTokenizerBase, count: int) -> list[int]:
    """The first tokens that follow the prompt in a whole conversation."""
    prompt = _apply(tokenizer, TURNS[:2], add_generation_prompt=True)["input_ids"]
    ids: list[int] = _apply(tokenizer, TURNS)["input_ids"]
    return ids[len(prompt) :][:count]


def find_end_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends a reply: what the chat template writes after one, else the tokenizer's end token.

    Training puts it after each reply, and generation has to stop at it.

    Raises:
        ModelError: When there is neither.
    """
    after = str(_apply(tokenizer, TURNS, tokenize=False)).rpartition(REPLY)[2]
    added: dict[int, Any] = tokenizer.added_tokens_decoder
    special = {str(token): token_id for token_id, token in added.items() if token.special}
    for text in sorted(special, key=len, reverse=True):
        if after.lstrip().startswith(text):
            return special[text]
    return _get_eos(tokenizer)


def _get_eos(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end token; set eos_token in its tokenizer_config.json")
    return int(tokenizer.eos_token_id)


def _apply(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], **options: Any) -> Any:
    import jinja2

    if "sanitize_control_tokens" not in tokenizer.apply_chat_template.__code__.co_varnames:
        raise ModelError("this version of transformers cannot keep special tokens out of message text; upgrade it")
    _get_eos(tokenizer)
    template = None if tokenizer.chat_template else load_chat_template("rolellama")
    try:
        return tokenizer.apply_chat_template(list(messages), chat_template=template, tokenizer_kwargs=_QUIET, **options)
    except (jinja2.TemplateError, ValueError) as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ModelError(f"the tokenizer's chat template cannot take the turns {roles}: {error}") from error

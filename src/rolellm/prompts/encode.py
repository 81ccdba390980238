"""From chat messages to tokens: the one way in, for training and for inference, so that both see the same prompt.

Text inside a message never becomes a special token: a question that contains ``</s>`` or ``<|im_end|>`` is sent as
those characters. Only the chat template writes special tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rolellm.errors import ModelError
from rolellm.prompts.render import chat_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REPLY = "rolellm reply"


def encode_prompt(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> list[int]:
    """The tokens that ask a model for its reply, generation prompt included.

    For ordinary text they equal ``tokenizer.apply_chat_template(messages, add_generation_prompt=True)``. A tokenizer
    without a chat template gets the ``rolellama`` form, with its own start and end tokens.

    Args:
        tokenizer: The model's tokenizer.
        messages: Objects with ``role`` and ``content``, as from `rolellm.prompts.render.prompt_messages`.

    Returns:
        Token ids, without padding.

    Raises:
        ModelError: When the tokenizer has no end token, or its chat template refuses the messages.
    """
    options: dict[str, Any] = {"add_generation_prompt": True, "sanitize_control_tokens": True}
    ids: list[int] = _apply(tokenizer, messages, **options)["input_ids"]
    return ids


def encode_replies(tokenizer: PreTrainedTokenizerBase, replies: Sequence[str]) -> list[list[int]]:
    """The tokens of replies as they go on from their prompts: text only, no special token, no end token.

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

    # SentencePiece tokenizers put a space before whatever opens a text; a reply opens nothing, the prompt did.
    (newline,) = encode(["\n"])
    encoded = encode([f"\n{reply}" for reply in replies])
    # Where the reply's own first characters join the newline's token, the reply is taken alone.
    return [
        ids[len(newline) :] if ids[: len(newline)] == newline else encode([reply])[0]
        for ids, reply in zip(encoded, replies, strict=True)
    ]


def end_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends a reply: what the chat template writes after one, else the tokenizer's end token.

    Training puts it after each reply, and generation has to stop at it.

    Raises:
        ModelError: When there is neither.
    """
    turns = [("system", "rolellm system"), ("user", "rolellm user"), ("assistant", _REPLY)]
    messages = [{"role": role, "content": content} for role, content in turns]
    after = str(_apply(tokenizer, messages, tokenize=False)).rpartition(_REPLY)[2]
    added: dict[int, Any] = tokenizer.added_tokens_decoder
    special = {str(token): token_id for token_id, token in added.items() if token.special}
    for text in sorted(special, key=len, reverse=True):
        if after.lstrip().startswith(text):
            return special[text]
    return _eos(tokenizer)


def _eos(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end token; set eos_token in its tokenizer_config.json")
    return int(tokenizer.eos_token_id)


def _apply(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], **options: Any) -> Any:
    import jinja2

    if "sanitize_control_tokens" not in tokenizer.apply_chat_template.__code__.co_varnames:
        raise ModelError("this version of transformers cannot keep special tokens out of message text; upgrade it")
    _eos(tokenizer)
    template = None if tokenizer.chat_template else chat_template("rolellama")
    try:
        return tokenizer.apply_chat_template(list(messages), chat_template=template, **options)
    except (jinja2.TemplateError, ValueError) as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ModelError(f"the tokenizer's chat template cannot take the turns {roles}: {error}") from error

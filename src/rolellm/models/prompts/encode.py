"""From chat messages to tokens: the one way in, for training and for inference, so that both see the same prompt.

Text inside a message never becomes a special token: a question that contains ``</s>`` or ``<|im_end|>`` is sent as
those characters. Only the chat template writes special tokens.

Templates of chat models differ in what they write before a reply when they ask for one, and when they show one: Qwen3
and GLM-4.5 an empty think block, gpt-oss a channel, R1-Distill opens a think block only when it asks. Others have no
system role, which is where the role lives. What is put right here goes into the template itself, so that it is saved
with the tokenizer and holds for whoever loads it.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from rolellm.core.errors import ModelError, RoleLLMWarning
from rolellm.core.limits import render_talks, run_limited
from rolellm.models.prompts.render import load_chat_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SYSTEM, REPLY = "rolellm system", "rolellm reply"
#: A conversation with one reply, to see what a template writes around it.
TURNS = (
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "rolellm user"},
    {"role": "assistant", "content": REPLY},
)
# Exchanges of the longest conversation that a template's time is taken with.
_PAIRS = 32
# The names by which templates let thinking be switched off.
_SWITCHES = ("enable_thinking", "thinking")
_FOLD = (
    "{% if messages | length > 1 and messages[0]['role'] == 'system' and messages[1]['role'] == 'user' %}"
    "{% set messages = [{'role': 'user', 'content': messages[0]['content'] + '\\n\\n' + messages[1]['content']}]"
    " + messages[2:] %}{% endif %}"
)


def settle_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Change a tokenizer's own chat template where it does not ask for a reply as it shows one.

    A system text that the template does not take goes in front of the first user turn, which a warning says once;
    switches for thinking are off; what the template writes between a prompt and its reply, other than white space, goes
    to the end of the prompt. A template that needs none of this, or that this does not help, is left as it is.

    Args:
        tokenizer: The model's tokenizer; one without a chat template is left alone.

    Raises:
        ModelError: When the template takes too long.
    """
    template = original = _get_template(tokenizer)
    if not template:
        return
    check_time(tokenizer)
    if SYSTEM not in _render_pair(tokenizer, template)[0]:
        template = _FOLD + template
    for switch in _SWITCHES:
        off = _switch_off(switch) + template
        if _render_pair(tokenizer, off) != _render_pair(tokenizer, template):
            template = off
    prompt, before = _render_pair(tokenizer, template)
    lead = before.removeprefix(prompt)
    if lead != before and lead.strip():
        ending = json.dumps(lead, ensure_ascii=False)
        template = template.removesuffix("\n") + f"{{% if add_generation_prompt %}}{{{{ {ending} }}}}{{% endif %}}"
    if template != original and _describe_mismatch(*_render_pair(tokenizer, template)) is None:
        tokenizer.chat_template = template
    if _FOLD in _get_template(tokenizer):
        _say_folded(tokenizer.name_or_path or "the tokenizer")


def check_time(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that a tokenizer's own chat template, which may be a stranger's, renders a few conversations in time.

    Raises:
        ModelError: When it does not.
    """
    template = _get_template(tokenizer)
    if template in ("", load_chat_template()):
        return
    try:
        _render_once(template, json.dumps(tokenizer.special_tokens_map))
    except TimeoutError as error:
        name = tokenizer.name_or_path or "the tokenizer"
        raise ModelError(f"{name}: its chat template {error} for one prompt; use another model or template") from error


@cache
def _render_once(template: str, tokens: str) -> None:
    system, *pair = TURNS
    talks = [TURNS[:2], TURNS, [system, *pair * _PAIRS]]
    run_limited(render_talks, template, json.loads(tokens), talks)


@cache
def _say_folded(name: str) -> None:
    warnings.warn(
        f"{name}: its chat template has no system role; the system text goes in front of the first user turn",
        RoleLLMWarning,
        stacklevel=3,
    )


def check_settled(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that a chat template asks for a reply as it shows one: a reply can be trained where it is asked for.

    Raises:
        ModelError: When it does not; says what it writes.
    """
    problem = _describe_mismatch(*_render_pair(tokenizer, _get_template(tokenizer)))
    if problem is not None:
        raise ModelError(f"the tokenizer's chat template {problem}; set prompt.form: rolellama")


def list_switches(template: str) -> dict[str, bool]:
    """The switches that `settle_template` set in a chat template, by name."""
    return {switch: False for switch in _SWITCHES if _switch_off(switch) in template}


def _describe_mismatch(prompt: str, before: str) -> str | None:
    """Describe a template's defect, by its prompt and by what it writes before a reply; ``None`` when there is none."""
    if SYSTEM not in prompt:
        return "takes no system text, which is where the role is described"
    request = prompt.rstrip()
    if before.startswith(request) and not before[len(request) :].strip():
        return None
    same = len(os.path.commonprefix([prompt, before]))  # noqa: RUF071  # Character by character is what is meant here.
    return (
        f"writes {_quote_end(prompt[same:])} where it asks for a reply and {_quote_end(before[same:])} where it shows "
        "one, so training would put replies where inference expects something else"
    )


def _quote_end(text: str) -> str:
    return repr(text[-40:]) if text else "nothing"


def _get_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """A tokenizer's own chat template, the default one where it has several; empty without any."""
    template: Any = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return str(template or "")


def _switch_off(switch: str) -> str:
    return f"{{% set {switch} = false %}}"


def _render_pair(tokenizer: PreTrainedTokenizerBase, template: str) -> tuple[str, str]:
    """Render what a template writes when it asks for a reply, and what it writes before one that is there."""
    import jinja2

    def render(turns: Any, **options: Any) -> str:
        return str(tokenizer.apply_chat_template(list(turns), chat_template=template, tokenize=False, **options))

    try:
        prompt = render(TURNS[:2], add_generation_prompt=True)
        whole = render(TURNS)
    except (jinja2.TemplateError, ValueError, TypeError):
        return "", ""
    return prompt, whole.rpartition(REPLY)[0]


# Whether a prompt is too long is checked where that matters, and said in words of ours.
_QUIET: Final = {"verbose": False}
_WAY_OUT: Final = "remove it from the rows, or tune a base whose template takes it"
#: The most tokens of a reply in a talk, by default (our choice).
REPLY_TOKENS: Final = 400


def limit_prompt(context: int, reply: int = REPLY_TOKENS) -> int:
    """The most tokens of a talk's prompt: a long reply gets a quarter of the context."""
    return context - min(reply, context // 4)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, Any]], **options: Any) -> list[int]:
    """The tokens that ask a model for its reply, generation prompt included.

    For ordinary text they equal ``tokenizer.apply_chat_template(messages, add_generation_prompt=True)``. A tokenizer
    without a chat template gets the ``rolellama`` form, with its own start and end tokens.

    Args:
        tokenizer: The model's tokenizer.
        messages: Objects with ``role`` and ``content``, as from `rolellm.models.prompts.render.make_messages`.
        options: What else ``apply_chat_template`` gets, such as ``tools``.

    Returns:
        Token ids, without padding.

    Raises:
        ModelError: When the tokenizer has no end token, or its chat template refuses the messages.
    """
    options = {"add_generation_prompt": True, "sanitize_control_tokens": True, **options}
    ids: list[int] = _apply(tokenizer, messages, **options)["input_ids"]
    return ids


def compile_added_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Compile a pattern of the texts that a tokenizer takes for one of its added tokens."""
    # Gemma's added tokens include runs of newlines, which templates and messages contain as ordinary text.
    texts = [str(token) for token in tokenizer.added_tokens_decoder.values()]
    added = sorted(filter(str.strip, texts), key=len, reverse=True)
    if not added:
        return re.compile("(?!)")
    # Gemma has 6,400 of them; the lookahead tries them only where one can begin.
    first = "".join(sorted({re.escape(text[0]) for text in added}))
    return re.compile(f"(?=[{first}])(?:{'|'.join(map(re.escape, added))})")


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
        self._special = compile_added_tokens(tokenizer)
        # By the messages before the last, what prompts begin with and its tokens; empty where they cannot be cut.
        self._heads: dict[tuple[tuple[str, str], ...], tuple[str, list[int]]] = {}

    def __call__(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The tokens that ask a model for its reply; see `encode_prompt`, which this equals.

        Raises:
            ModelError: As `encode_prompt` does.
        """
        *before, last = messages
        key = tuple((message["role"], message["content"]) for message in before)
        if key not in self._heads:
            self._heads[key] = self._encode_head(before, last["role"])
        head, ids = self._heads[key]
        if ids and not self._special.search(last["content"]):
            text = _render(self._tokenizer, messages, add_generation_prompt=True)
            if text.startswith(head):
                return [*ids, *self._plain(text[len(head) :])]
        return encode_prompt(self._tokenizer, messages)

    def _encode_head(self, before: list[dict[str, str]], role: str) -> tuple[str, list[int]]:
        if any(self._special.search(message["content"]) for message in before):
            return "", []
        first = [*before, {"role": role, "content": "a"}]
        second = [*before, {"role": role, "content": "b"}]
        text = _render(self._tokenizer, first, add_generation_prompt=True)
        changed = _render(self._tokenizer, second, add_generation_prompt=True)
        common = os.path.commonprefix([text, changed])  # noqa: RUF071  # Character by character is meant.
        starts = [match.start() for match in self._special.finditer(common)]
        head = common[: max(starts, default=0)]
        ids = self._plain(head)
        whole = [*ids, *self._plain(text[len(head) :])]
        if whole != encode_prompt(self._tokenizer, first):
            return "", []
        return head, ids

    def _plain(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, **_QUIET)["input_ids"]
        return ids


class TurnEncoder:
    """Encodes prompts and replies whose turns have more than a text, such as tool calls.

    Args:
        tokenizer: The model's tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._end = find_end_token(tokenizer)
        self._special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        # Roles of turns, with their keys, that the chat template is known to write.
        self._taken: set[tuple[str, ...]] = set()

    def __call__(
        self, messages: Sequence[dict[str, Any]], replies: Sequence[dict[str, Any]], options: Mapping[str, Any]
    ) -> tuple[list[int], list[int]]:
        """Encode a prompt, and the longest of its replies with its end token.

        Args:
            messages: The turns that ask for a reply.
            replies: The assistant's turns; without any, the reply is the end token.
            options: What else the chat template gets, such as ``tools``.

        Raises:
            ModelError: When the chat template refuses the turns, ignores what they have besides a text, or writes a
                reply elsewhere than where it asks for one.
        """
        self._check_options(options)
        for index, turn in enumerate(messages):
            self._check_turn(messages[:index], turn, options)
        prompt = encode_prompt(self._tokenizer, messages, **options)
        longest = [self._end]
        for reply in replies:
            self._check_turn(messages, reply, options)
            turns = [*messages, reply]
            ids: list[int] = _apply(self._tokenizer, turns, sanitize_control_tokens=True, **options)["input_ids"]
            if ids[: len(prompt)] != prompt:
                raise ModelError(
                    "the chat template does not write the reply after the prompt that asks for it, as with "
                    "reasoning_content where thinking is off; remove what it writes before the reply"
                )
            longest = max(longest, self._end_reply(ids[len(prompt) :]), key=len)
        return prompt, longest

    def _check_options(self, options: Mapping[str, Any]) -> None:
        from transformers.utils.chat_template_utils import _get_template_variables

        template = self._tokenizer.get_chat_template(tools=options.get("tools"))
        variables = _get_template_variables(template) - {"messages", "add_generation_prompt"}
        ignored = sorted(options.keys() - variables)
        if ignored:
            raise ModelError(f"the chat template ignores {', '.join(ignored)}; {_WAY_OUT}")

    def _check_turn(self, before: Sequence[dict[str, Any]], turn: dict[str, Any], options: Mapping[str, Any]) -> None:
        # Results of tools are in the order of the calls; many templates need no ids.
        keys = sorted(key for key, value in turn.items() if value and key not in ("role", "tool_call_id"))
        if (turn["role"], *keys) in self._taken:
            return
        for key in keys:
            bare = {name: value for name, value in turn.items() if name != key}
            try:
                text = _render(self._tokenizer, [*before, turn], **options)
                bare_text = _render(self._tokenizer, [*before, bare], **options)
            except ModelError:
                # It reads what it refuses a turn without; some refuse a conversation that is not whole.
                continue
            if key == "tool_calls" and _has_quoted_arguments(turn[key], text):
                raise ModelError("the chat template puts the arguments of tool_calls in quotes; give them as an object")
            if text == bare_text:
                shape = f"{turn['role']} turns that have {', '.join(keys)}"
                raise ModelError(f"the chat template ignores {key} of {shape}; {_WAY_OUT}")
        self._taken.add((turn["role"], *keys))

    def _end_reply(self, ids: list[int]) -> list[int]:
        """End a reply at the special token that the chat template closes it with, else with the tokenizer's own."""
        length = 0
        for number, token in enumerate(ids, start=1):
            if token in self._special:
                length = number
        if length and not self._tokenizer.decode(ids[length:]).strip():
            return ids[:length]
        return [*ids, self._end]


def _has_quoted_arguments(calls: Sequence[dict[str, Any]], text: str) -> bool:
    """Tell if arguments that are JSON already were written as JSON again."""
    for call in calls:
        arguments = call.get("function", call).get("arguments")
        if isinstance(arguments, str) and json.dumps(arguments, ensure_ascii=False) in text:
            return True
    return False


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
    for index, ids in enumerate(encoded):
        if ids[: len(newline)] == newline:
            encoded[index] = ids[len(newline) :]
        else:
            # The reply's own first characters joined the newline's token.
            encoded[index] = encode([texts[index]])[0]
    return encoded


def _find_lead(tokenizer: PreTrainedTokenizerBase) -> str:
    """White space that the chat template writes between a prompt and its reply."""
    prompt = _render(tokenizer, TURNS[:2], add_generation_prompt=True)
    before = _render(tokenizer, TURNS).rpartition(REPLY)[0]
    lead = before[len(prompt) :]
    if lead.strip() or not before.startswith(prompt):
        return ""
    return lead


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
    after = _render(tokenizer, TURNS).rpartition(REPLY)[2]
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


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, Any]], **options: Any) -> str:
    return str(_apply(tokenizer, messages, tokenize=False, **options))


def _apply(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, Any]], **options: Any) -> Any:
    import jinja2

    _get_eos(tokenizer)
    is_new = "sanitize_control_tokens" in signature(tokenizer.apply_chat_template).parameters
    if not is_new and options.pop("sanitize_control_tokens", False):
        for token in list_control_tokens(tokenizer, [messages, options]):
            raise ModelError(
                f"a message has the special token {token}, which transformers keeps as text from 5.20 on; run "
                '`pip install "transformers>=5.20"`, or remove it'
            )
    template = None if tokenizer.chat_template else load_chat_template("rolellama")
    try:
        return tokenizer.apply_chat_template(list(messages), chat_template=template, tokenizer_kwargs=_QUIET, **options)
    except (jinja2.TemplateError, ValueError, TypeError) as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ModelError(f"the tokenizer's chat template cannot take the turns {roles}: {error}") from error


def list_control_tokens(tokenizer: PreTrainedTokenizerBase, content: object) -> list[Any]:
    """List the added tokens that a tokenizer reads out of what goes into its chat template, unless it is told not to.

    Args:
        tokenizer: The model's tokenizer.
        content: Messages and options, as values of JSON.
    """
    template = _get_template(tokenizer)
    text = json.dumps(content, ensure_ascii=False)
    tokens = []
    for token in tokenizer.added_tokens_decoder.values():
        name = str(token)
        is_control = token.special or name in template
        if is_control and name.strip() and name in text:
            tokens.append(token)
    return tokens

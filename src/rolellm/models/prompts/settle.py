"""A chat template that asks for a reply as a trained one is shown: with the role in the prompt, and no thinking first.

Templates of chat models differ in what they write before a reply when they ask for one, and when they show one: Qwen3
and GLM-4.5 an empty think block, gpt-oss a channel, R1-Distill opens a think block only when it asks. Others have no
system role, which is where the role lives. What is put right here goes into the template itself, so that it is saved
with the tokenizer and holds for whoever loads it.
"""

from __future__ import annotations

import json
import os
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

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
    run_limited(render_talks, template, json.loads(tokens), [TURNS[:2], TURNS, [system, *pair * _PAIRS]])


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
    """The switches that `settle` set in a chat template, by name."""
    return {switch: False for switch in _SWITCHES if _switch_off(switch) in template}


def _describe_mismatch(prompt: str, before: str) -> str | None:
    """Describe a template's defect, by its prompt and by what it writes before a reply; ``None`` when there is none."""
    if SYSTEM not in prompt:
        return "takes no system text, which is where the role is described"
    request = prompt.rstrip()
    if before.startswith(request) and not before[len(request) :].strip():
        return None
    same = len(os.path.commonprefix([prompt, before]))  # noqa: RUF071  # Character by character is what is meant here.
    asks, shows = (repr(text[same:][-40:]) if text[same:] else "nothing" for text in (prompt, before))
    return (
        f"writes {asks} where it asks for a reply and {shows} where it shows one, so training would put replies where "
        "inference expects something else"
    )


def _get_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """A tokenizer's own chat template, the default one where it has several; empty without any."""
    template: Any = tokenizer.chat_template
    return str((template.get("default") if isinstance(template, dict) else template) or "")


def _switch_off(switch: str) -> str:
    return f"{{% set {switch} = false %}}"


def _render_pair(tokenizer: PreTrainedTokenizerBase, template: str) -> tuple[str, str]:
    """Render what a template writes when it asks for a reply, and what it writes before one that is there."""
    import jinja2

    def render(turns: Any, **options: Any) -> str:
        return str(tokenizer.apply_chat_template(list(turns), chat_template=template, tokenize=False, **options))

    try:
        return render(TURNS[:2], add_generation_prompt=True), render(TURNS).rpartition(REPLY)[0]
    except (jinja2.TemplateError, ValueError, TypeError):
        return "", ""

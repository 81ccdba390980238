"""Ollama's Modelfile: the chat template in the syntax of Go, the role's prompt, and where a reply ends.

A chat template is read by what it writes between turns (`read_turn_form`), for talks of a system turn or none, then
user and assistant in turn. So it serves any family; a template that writes something else in longer talks is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rolellm.core.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TEXTS: Final = {"system": "Xsystemtext{}X", "user": "Xusertext{}X", "assistant": "Xassistanttext{}X"}


@dataclass(frozen=True, slots=True)
class TurnForm:
    """What a chat template writes between turns.

    Attributes:
        between: Text in front of a turn, by the role before it (empty at the beginning) and its own.
        ending: Text after the last user's turn, which asks for a reply.
    """

    between: Mapping[tuple[str, str], str]
    ending: str

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a talk that ends with a user's turn."""
        parts = []
        before = ""
        for message in messages:
            parts += [self.between[before, message["role"]], message["content"]]
            before = message["role"]
        return "".join(parts) + self.ending

    def to_go(self) -> str:
        """Return the template in the syntax of Go's ``text/template``, as Ollama fills it."""
        roles: dict[str, list[tuple[str, str]]] = {}
        for (before, role), text in self.between.items():
            roles.setdefault(role, []).append((before, text))
        branches = []
        for role, cases in roles.items():
            texts = "".join(_write_case(before, text, number) for number, (before, text) in enumerate(cases))
            branches.append(f'eq .Role "{role}" }}}}{texts}{{{{ end }}}}{{{{ .Content }}}}')
        body = "{{ else if ".join(branches)
        loop = '{{ $before := "" }}{{ range .Messages }}{{ if ' + body + "{{ end }}{{ $before = .Role }}{{ end }}"
        return loop + _quote(self.ending)


def _write_case(before: str, text: str, number: int) -> str:
    condition = f'eq $before "{before}"'
    return f"{{{{ {'else if' if number else 'if'} {condition} }}}}{_quote(text)}"


def _quote(text: str) -> str:
    """Write a text as a string of Go, which no marker for trimming can touch."""
    return f"{{{{ {json.dumps(text)} }}}}" if text else ""


def read_turn_form(tokenizer: PreTrainedTokenizerBase) -> TurnForm:
    """Read what a tokenizer's chat template writes between turns.

    The token that begins a text is left out where llama.cpp adds it itself.

    Raises:
        ModelError: When the template changes what is in a turn, or writes something else in longer talks.
    """
    between: dict[tuple[str, str], str] = {}
    endings = set()
    for talk in (
        ("system", "user"),
        ("user",),
        ("system", *("user", "assistant") * 3, "user"),
        ("user", "assistant") * 2,
    ):
        roles = talk if talk[-1] == "user" else (*talk, "user")
        messages = [{"role": role, "content": _TEXTS[role].format(number)} for number, role in enumerate(roles)]
        rest = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        before = ""
        for message in messages:
            text, found, rest = rest.partition(message["content"])
            role = message["role"]
            if not found or between.setdefault((before, role), text) != text:
                raise ModelError(
                    f"the chat template cannot be written for Ollama: what it writes in front of a turn of the {role} "
                    "is not the same in every talk; export --to gguf, and let Ollama use the template in the file"
                )
            before = role
        endings.add(rest)
    if len(endings) > 1:
        raise ModelError("the chat template cannot be written for Ollama: its end differs from talk to talk")
    form = TurnForm(between, endings.pop())
    return _drop_beginning(form, tokenizer)


def _drop_beginning(form: TurnForm, tokenizer: PreTrainedTokenizerBase) -> TurnForm:
    """Leave out the token that begins a text, where the tokenizer adds it and llama.cpp does so, too."""
    begin = tokenizer.bos_token
    adds = begin is not None and tokenizer("x")["input_ids"][0] == tokenizer.bos_token_id
    if not adds:
        return form
    between = {}
    for (before, role), text in form.between.items():
        between[before, role] = text.removeprefix(str(begin)) if not before else text
    return TurnForm(between, form.ending)


def write_modelfile(
    source: str,
    form: TurnForm,
    *,
    system: str,
    stops: Sequence[str],
    temperature: float,
    context: int,
    adapter: str = "",
) -> str:
    """Write a Modelfile.

    Args:
        source: The file of the model, next to the Modelfile.
        form: The chat template.
        system: The role's prompt.
        stops: The texts of tokens that end a reply.
        temperature: Of sampling.
        context: Tokens of prompt and reply together.
        adapter: The file of an adapter for it.
    """
    lines = [f"FROM ./{source}"]
    if adapter:
        lines.append(f"ADAPTER ./{adapter}")
    lines.append(f'TEMPLATE """{form.to_go()}"""')
    # Three quotes would end the text, and cannot be escaped.
    plain = system.replace('"""', "'''")
    lines.append(f'SYSTEM """{plain}"""')
    parameters: list[tuple[str, Any]] = [("stop", json.dumps(stop, ensure_ascii=False)) for stop in stops]
    parameters.append(("temperature", temperature))
    parameters.append(("num_ctx", context))
    lines += [f"PARAMETER {name} {value}" for name, value in parameters]
    return "\n".join(lines) + "\n"

"""Ollama's Modelfile, with the model's chat template in the syntax of Go.

What a chat template writes between turns is read off conversations that it renders, so that any family has its template
in Go's syntax whose turns stay as they are and follow each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rolellm.core.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: What is between the turns of two roles; the first role is empty where a talk begins, the second where a reply does.
Joints = dict[tuple[str, str], str]
_ROLES: Final = ("system", "user", "assistant")
_SHAPES: Final = (
    ("system", "user", "assistant", "user", "assistant", "user"),
    ("user", "assistant", "user"),
    ("system", "user"),
)
#: What some templates refuse.
_RARE: Final = (("system", "assistant", "user"), ("assistant", "user"))
_QUOTES: Final = '"""'


def write_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Write a tokenizer's chat template in the syntax of Go, as Ollama fills it.

    Raises:
        ModelError: When it cannot be said by what is between turns.
    """
    joints = _read_joints(tokenizer)
    parts = ['{{- $last := "" }}{{- range .Messages }}']
    for role in _ROLES:
        parts += [f"{{{{- if eq .Role {_write_json(role)} }}}}", _write_choice(joints, role), "{{- end }}"]
    parts += ["{{- .Content }}{{- $last = .Role }}{{- end }}", _write_choice(joints, "")]
    return "".join(parts)


def write_modelfile(
    sources: Mapping[str, str], template: str, system: str, parameters: Sequence[tuple[str, object]]
) -> str:
    """Write a Modelfile.

    Args:
        sources: What ``FROM`` and ``ADAPTER`` name.
        template: In the syntax of Go; empty for none.
        system: The role's system turn; empty for none.
        parameters: Names and values.
    """
    lines = [f"{name} {path}" for name, path in sources.items()]
    # Nothing escapes three quotes there.
    texts = {"TEMPLATE": template, "SYSTEM": system.replace(_QUOTES, "'''")}
    for name, text in texts.items():
        if text.endswith('"'):
            text += "\n"
        if text:
            lines.append(f"{name} {_QUOTES}{text}{_QUOTES}")
    for name, value in parameters:
        lines.append(f"PARAMETER {name} {_write_json(value)}")
    return "\n".join(lines) + "\n"


def _read_joints(tokenizer: PreTrainedTokenizerBase) -> Joints:
    joints: Joints = {}
    for shape in (*_SHAPES, *_RARE):
        turns = [{"role": role, "content": f"rolellm {role} {number}"} for number, role in enumerate(shape)]
        try:
            text = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # whatever a template raises
            if shape in _RARE:
                continue
            raise ModelError(f"the chat template refuses a talk: {error}") from error
        last = ""
        for turn in turns:
            before, mark, text = text.partition(turn["content"])
            _add_joint(joints, last, turn["role"], before)
            last = turn["role"]
            if not mark:
                raise ModelError("the chat template leaves a turn out, or has turns in another order")
        _add_joint(joints, last, "", text)
    start = str(tokenizer.bos_token or "")
    ids = tokenizer("a")["input_ids"]
    if start and ids[0] == tokenizer.bos_token_id:
        # Whoever reads the text adds it.
        for role in _ROLES:
            if ("", role) in joints:
                joints["", role] = joints["", role].removeprefix(start)
    return joints


def _add_joint(joints: Joints, last: str, role: str, text: str) -> None:
    if "rolellm" in text or joints.setdefault((last, role), text) != text:
        raise ModelError(f"the chat template does not always write the same between {last or 'the start'} and {role}")


def _write_choice(joints: Joints, role: str) -> str:
    """Write what is in front of a role's turn, by the role of the one before."""
    texts = {last: text for (last, into), text in joints.items() if into == role}
    *others, final = texts
    if len(set(texts.values())) == 1:
        others = []
    choice = ""
    for last in others:
        choice += f"{{{{- {'else if' if choice else 'if'} eq $last {_write_json(last)} }}}}{_quote(texts[last])}"
    if choice:
        return f"{choice}{{{{- else }}}}{_quote(texts[final])}{{{{- end }}}}"
    return _quote(texts[final])


def _quote(text: str) -> str:
    return f"{{{{- {_write_json(text)} }}}}" if text else ""


def _write_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

"""What is sent to `transformers serve`, and the command for vLLM."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from rolellm.models.prompts.render import load_chat_template
from rolellm.playing.local_server import IGNORED, build_vllm_command, continue_last_turn

CHATML = (
    "{%- macro head(role) -%}<|im_start|>{{ role }}\n{%- endmacro -%}\n"
    "{% for message in messages %}\n    {{- head(message.role) + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- head('assistant') + '\\n' }}\n{%- endif %}\n"
)
STRICT = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns take turns') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST] {{ (system + ' ' if loop.first else '') + m['content'] }} [/INST]"
    "{% else %}{% generation %} {{ m['content'] }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}\n"
)


@pytest.mark.parametrize("template", [CHATML, STRICT, load_chat_template()], ids=["macro", "strict", "ours"])
def test_a_turn_stays_open_and_nothing_else_changes(tiny_model: Path, template: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model, trust_remote_code=False)
    ours = continue_last_turn(template)

    def render(messages: list[dict[str, Any]], chat_template: str, **how: Any) -> str:
        return str(tokenizer.apply_chat_template(messages, chat_template=chat_template, tokenize=False, **how))

    talk = [{"role": role, "content": f"{role} s."} for role in ("system", "user", "assistant", "user", "assistant")]
    for count in (2, 4):
        asked = render(talk[:count], template, add_generation_prompt=True)
        assert render(talk[:count], ours, add_generation_prompt=True) == asked
    for count in (3, 5):
        opened = render(talk[:count], template, continue_final_message=True)
        assert render(talk[:count], ours, add_generation_prompt=True) == opened


def test_all_that_transformers_serve_ignores_is_known() -> None:
    from transformers.cli.serving.chat_completion import UNUSED_CHAT_COMPLETION_FIELDS

    # No reply is another by these. Releases before 5.23 ignore the newer name of max_tokens, too.
    harmless = {"metadata", "service_tier", "store", "stream_options", "user", "max_completion_tokens"}
    assert {*IGNORED} == UNUSED_CHAT_COMPLETION_FIELDS - harmless


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        pytest.param({"r": 64}, "64", id="ours"),
        pytest.param({"r": 8, "rank_pattern": {"q_proj": 40}}, "64", id="pattern"),
        pytest.param({"r": 257}, "320", id="between"),
        pytest.param({"r": 513}, None, id="too-high"),
        pytest.param({"use_dora": True}, None, id="dora"),
    ],
)
def test_the_command_for_vllm_is_whole(
    tiny_model: Path, tmp_path: Path, options: dict[str, Any], limit: str | None
) -> None:
    from peft import LoraConfig

    LoraConfig(base_model_name_or_path=str(tiny_model), **options).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "chat_template.jinja").touch()
    command = build_vllm_command(str(tmp_path))
    if limit is None:
        assert command is None
        return
    folder = str(tmp_path)
    assert shlex.split(command or "", comments=True) == [
        *("vllm", "serve", str(tiny_model), "--enable-lora", "--max-lora-rank", limit),
        *("--lora-modules", f"tuned={folder}", "--tokenizer", folder),
        *("--chat-template", f"{folder}/chat_template.jinja", "--generation-config", "vllm"),
    ]

"""What is sent to `transformers serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolellm.models.prompts.render import load_chat_template
from rolellm.playing.local_server import IGNORED, continue_last_turn

from ..models.test_adapters import make_adapter

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


def test_adapters_of_a_base_share_its_tokenizer(tiny_model: Path, tmp_path: Path) -> None:
    from rolellm.models.adapters import AdapterModel
    from rolellm.playing.adapter_server import add_adapter

    model = AdapterModel(str(tiny_model))
    for name, template in (("ada", "{{ messages }}"), ("bob", "{{ messages }}"), ("eve", "{{ messages[0] }}")):
        adapter = Path(make_adapter(tiny_model, tmp_path / name, 0))
        (adapter / "chat_template.jinja").write_text(template, encoding="utf-8")
        add_adapter(model, name, str(adapter))
    tokenizers = {name: form.tokenizer for name, form in model.forms.items()}
    assert tokenizers["ada"] is tokenizers["bob"]
    assert len({id(tokenizer) for tokenizer in tokenizers.values()}) == 3

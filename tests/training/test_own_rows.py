"""Rows of one's own: what they say beyond texts reaches the chat template, is not trained, or is refused by name."""

import json
from typing import Any

import pytest
from datasets import Dataset

from rolellm.core.errors import DataError, RecipeError
from rolellm.models.prompts.encode import settle_template
from rolellm.training.dialogues import encode_dialogues
from rolellm.training.examples import Example, encode
from rolellm.training.recipe import TrainingRecipe
from rolellm.training.rows import read_own_rows

from ..versions import NEEDS_SANITIZING
from .tokenizers import CHATML, make_tokenizer, read_template

TOOLS = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}]
CALL = [{"type": "function", "function": {"name": "tide", "arguments": {"port": "Nantucket <|im_end|>"}}}]
QUOTED = {"function": {"name": "tide", "arguments": '{"a": 1}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are Ahab."},
    {"role": "user", "content": "When do we sail?"},
    {"role": "assistant", "content": None, "tool_calls": CALL},
    {"role": "tool", "content": "at six", "tool_call_id": "1"},
    {"role": "assistant", "content": "At six, lad."},
]
USER, REPLY = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Aye."}
NAMED = CHATML.replace("+ m['content']", "+ (m['name'] + ': ' if m.name else '') + m['content']")
QWEN2, QWEN3, LLAMA = map(read_template, ("qwen2_5", "qwen3", "llama3_1"))
THINKING = CHATML.replace(
    "+ m['content']", "+ ('<think>' + m.reasoning_content + '</think>' if m.reasoning_content else '') + m['content']"
)


def tokenizer_with(template: str) -> Any:
    tokenizer = make_tokenizer("chatml", template)
    tokenizer.add_tokens(["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"], special_tokens=True)
    settle_template(tokenizer)
    return tokenizer


def examples(rows: Any, template: str, trainer: str = "sft") -> tuple[list[Example], Any]:
    tokenizer = tokenizer_with(template)
    own: Any = read_own_rows(rows, trainer)
    if trainer == "sft":
        everything, _ = encode_dialogues(own, tokenizer, TrainingRecipe(max_length=4096)).split(0)
        return list(everything.examples), tokenizer
    return encode(own, tokenizer, max_length=4096, trainer=trainer), tokenizer


@NEEDS_SANITIZING
@pytest.mark.parametrize("template", [QWEN2, QWEN3, LLAMA], ids=["qwen2.5", "qwen3", "llama3.1"])
def test_calls_of_tools_are_trained_as_the_template_writes_them(template: str) -> None:
    # As JSON: older releases of datasets sort the keys of a list's objects.
    rows = [{"messages": MESSAGES, "tools": json.dumps(TOOLS)}, {"messages": [USER, REPLY], "tools": None}]
    (call, answer), tokenizer = examples(Dataset.from_list(rows[:1]), template)
    (plain,), _ = examples(rows[1:], template)
    for example, count in ((call, 2), (answer, 4)):
        text = tokenizer.apply_chat_template(MESSAGES[:count], tools=TOOLS, add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(list(example.prompt_ids)) == text
        whole = tokenizer.apply_chat_template(MESSAGES[: count + 1], tools=TOOLS, tokenize=False)
        trained = text + tokenizer.decode(list(example.reply_ids))
        assert whole.startswith(trained) and not whole.removeprefix(trained).strip(), "all of the turn is trained"
    # The token in a call's argument is text.
    assert sum(token in tokenizer.all_special_ids for token in call.reply_ids) <= 1
    assert "tide" not in tokenizer.decode(list(plain.input_ids))


def test_turns_of_weight_0_are_read_and_not_trained() -> None:
    wrong = REPLY | {"content": "Nay.", "weight": 0}
    rows = Dataset.from_list([{"messages": [USER, wrong, USER, REPLY | {"weight": 1}, USER, REPLY]}])
    (made,), tokenizer = examples(rows, CHATML)
    trained = [token for token, label in zip(made.input_ids, made.labels, strict=True) if label == token]
    assert tokenizer.decode(trained) == "Aye.<|im_end|>" * 2
    assert "Nay." in tokenizer.decode(list(made.prompt_ids))


def test_what_a_template_takes_is_passed_to_it() -> None:
    (named,), tokenizer = examples([{"messages": [USER | {"name": "Pip"}, REPLY]}], NAMED)
    assert "Pip: Why?" in tokenizer.decode(list(named.prompt_ids))
    (thought,), tokenizer = examples(
        [{"prompt": "Why?", "completion": [REPLY | {"reasoning_content": "Hm."}]}], THINKING
    )
    assert tokenizer.decode(list(thought.reply_ids)) == "<think>Hm.</think>Aye.<|im_end|>"
    switched = "{{ mood if mood else '' }}" + CHATML
    rows = [{"prompt": "Why?", "completion": "Aye.", "chat_template_kwargs": {"mood": mood}} for mood in ("grim", None)]
    (grim, unset), tokenizer = examples(Dataset.from_list(rows), switched)
    assert tokenizer.decode(list(grim.prompt_ids)) == "grim" + tokenizer.decode(list(unset.prompt_ids))


def chat(*turns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(turns), **more}


ON = {"enable_thinking": True}


@pytest.mark.parametrize(
    ("item", "template", "words"),
    [
        pytest.param(chat(USER | {"name": "Pip"}, REPLY), CHATML, "ignores name of user turns", id="name"),
        pytest.param(chat(USER, REPLY | {"mood": "grim"}), CHATML, "ignores mood of assistant", id="unknown"),
        pytest.param(chat(USER, REPLY, tools=TOOLS), CHATML, "ignores tools; remove", id="tools"),
        pytest.param(
            chat(USER, REPLY, chat_template_kwargs=ON),
            QWEN3,
            "ignores enable_thinking",
            id="switch-off",
        ),
        pytest.param(
            chat(USER, REPLY | {"reasoning_content": "Hm."}),
            QWEN3,
            "write the reply after",
            id="thoughts",
        ),
        pytest.param(
            chat(USER, REPLY | {"tool_calls": CALL}, tools=TOOLS),
            LLAMA,
            "ignores content of assistant turns that have content, tool_calls",
            id="a text beside a call",
        ),
        pytest.param(chat(USER, REPLY | {"tool_calls": [QUOTED]}), QWEN2, "in quotes", id="quoted-JSON"),
        pytest.param(chat(*MESSAGES[1:3]), CHATML, "ignores tool_calls of assistant turns", id="tool_calls"),
    ],
)
def test_what_the_template_would_ignore_is_refused(item: dict[str, Any], template: str, words: str) -> None:
    with pytest.raises(RecipeError, match=f"train_dataset, row/1: .*{words}"):
        examples([item], template)


@NEEDS_SANITIZING
def test_pairs_reach_trl_as_they_are() -> None:
    plain = json.loads(json.dumps(CALL).replace("<|im_end|>", "Ness"))
    call = {"role": "assistant", "content": "", "tool_calls": plain}
    switches = {"chat_template_kwargs": None, "rejected": "Nay."}
    rows = [
        {"prompt": "Why?", "chosen": [call], "tools": TOOLS} | switches,
        {"prompt": "Who?", "chosen": "Aye.", "tools": None} | switches,
    ]
    made, tokenizer = examples(rows, QWEN2, "dpo")
    first, second = (example.row or {} for example in made)
    assert first["chosen"] == [call]
    # TRL unpacks the second.
    assert [(row["tools"], row["chat_template_kwargs"]) for row in (first, second)] == [(TOOLS, {}), (None, {})]
    assert ['"tide"' in tokenizer.decode(list(example.prompt_ids)) for example in made] == [True, False]
    with pytest.raises(DataError, match="trainer grpo cannot use the column tools"):
        read_own_rows(rows, "grpo")

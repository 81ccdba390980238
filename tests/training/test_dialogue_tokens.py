"""Dialogues as tokens: each reply is trained after what inference would send, in one example where that works."""

from typing import Any

import pytest

from rolellm.core.errors import RecipeError
from rolellm.data.own_rows import DIALOGUES, OwnRows, load_own_rows
from rolellm.models.prompts.encode import encode_prompt, encode_replies, find_end_token, settle_template
from rolellm.training.dialogues import DialogueTable, describe_dialogues, encode_dialogues
from rolellm.training.recipe import TrainingRecipe

from ..versions import NEEDS_SANITIZING
from .test_chat_templates import DEEPSEEK_31, MARKS
from .tokenizers import CHATML, make_tokenizer, read_template

TURNS = [
    {"role": "system", "content": "You are Ada Fenn."},
    *({"role": role, "content": text} for text in ("Why? 海", "Who?") for role in ("user", "assistant")),
]
#: Replies that look like what comes before or after them, and texts of special tokens.
ODD = ["assistant", "Where? <|im_end|>", " Aye. ", "### Response:\n"]


def make_rows(count: int = 1, texts: list[str] | None = None, **options: Any) -> OwnRows[Any]:
    messages = TURNS if texts is None else [TURNS[0]]
    for text in texts or ():
        messages = [*messages, {"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return load_own_rows([{"messages": messages}] * count, DIALOGUES, **options)


def encode(rows: Any, tokenizer: Any, **training: Any) -> DialogueTable:
    return encode_dialogues(rows, tokenizer, TrainingRecipe(**training))


@pytest.mark.filterwarnings("ignore::rolellm.core.errors.RoleLLMWarning")
@pytest.mark.parametrize("texts", [pytest.param(None, id="plain"), pytest.param(ODD, id="odd", marks=NEEDS_SANITIZING)])
@pytest.mark.parametrize(
    ("kind", "template", "is_whole"),
    [
        pytest.param("bytes", None, True, id="rolellama"),
        pytest.param("metaspace", None, True, id="SentencePiece"),
        pytest.param("bytes", read_template("gemma"), True, id="no system role"),
        pytest.param("bytes", DEEPSEEK_31, True, id="thoughts are over"),
        pytest.param("bytes", read_template("qwen3"), False, id="past replies lose their thoughts"),
        pytest.param("chatml", CHATML, True, id="chatml"),
        pytest.param("chatml", read_template("llama3_1"), True, id="trims"),
    ],
)
def test_every_reply_comes_after_what_inference_sends(
    kind: str, template: str | None, is_whole: bool, texts: list[str] | None
) -> None:
    tokenizer = make_tokenizer(kind, template)
    tokenizer.add_tokens([*MARKS, "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"], special_tokens=True)
    settle_template(tokenizer)
    rows = make_rows(texts=texts)
    (dialogue,) = rows
    everything, _ = encode(rows, tokenizer).split(0)
    examples = list(everything.examples)
    if texts is None:
        assert len(examples) == (1 if is_whole else 2)
    spans = []
    for example in examples:
        ids, labels = example.input_ids, example.labels
        starts = [at for at in range(len(ids)) if labels[at] != -100 and labels[at - 1] == -100]
        spans += [(ids, labels, start) for start in starts]
        assert (example.replies, example.trained_tokens) == (len(starts), sum(label != -100 for label in labels))
    for number, (ids, labels, start) in zip(dialogue.replies, spans, strict=True):
        assert ids[:start] == encode_prompt(tokenizer, list(dialogue.messages[:number]))
        (reply,) = encode_replies(tokenizer, [dialogue.messages[number]["content"]])
        reply.append(find_end_token(tokenizer))
        assert labels[start:][: len(reply) + 1] in (reply, [*reply, -100])


def test_replies_that_do_not_fit_are_left_out_and_counted() -> None:
    tokenizer = make_tokenizer("bytes")
    rows = make_rows(2, ["Why?"] * 4)
    everything, _ = encode(rows, tokenizer).split(0)
    full = everything.examples[0].length
    table = encode(rows, tokenizer, max_length=full - 1)
    assert (table.replies, table.long) == (6, 2)
    line = describe_dialogues(rows, table, full - 1)
    assert line.startswith(f"train_dataset (messages): 2 dialogues, 6 replies; 2 over {full - 1} tokens")
    truncated, _ = encode(rows, tokenizer, max_length=full - 1, truncate_replies=True).split(0)
    assert (truncated.examples[0].replies, truncated.examples[0].length) == (4, full - 1)
    with pytest.raises(RecipeError, match=r"no reply fits training\.max_length \(8\)"):
        encode(rows, tokenizer, max_length=8)


def test_what_is_held_out_goes_by_the_first_question() -> None:
    data = [{"prompt": f"What is {number % 50}?", "completion": f"It is {number}."} for number in range(100)]
    tokenizer = make_tokenizer("bytes")
    table = encode(load_own_rows(data, DIALOGUES), tokenizer)
    train, held_out = table.split(0.2)
    assert train.dialogues + held_out.dialogues == 100
    assert 4 <= held_out.dialogues <= 40
    assert not train.trained_on.instructions & held_out.trained_on.instructions
    backwards = encode(load_own_rows(data[::-1], DIALOGUES), tokenizer)
    assert backwards.split(0.2)[1].trained_on == held_out.trained_on
    assert backwards.fingerprint != table.fingerprint
    for count in (1, 2, 4):
        few = encode(load_own_rows(data[:count], DIALOGUES), tokenizer)
        assert few.split(1e-9)[1].dialogues == (count > 1)
        assert few.split(1)[0].dialogues == 1


def test_rows_that_the_template_refuses_are_named_or_skipped() -> None:
    tokenizer = make_tokenizer("bytes")
    tool = {"role": "tool", "content": "at six"}
    data = [{"messages": TURNS}, {"messages": [TURNS[1], tool, TURNS[2]]}]
    with pytest.raises(RecipeError, match=r"train_dataset, row/2: .*cannot take the turns user, tool"):
        encode(load_own_rows(data, DIALOGUES), tokenizer)
    rows = load_own_rows(data, DIALOGUES, skip_bad=True)
    table = encode(rows, tokenizer)
    assert (len(table), len(rows.skipped)) == (1, 1)
    assert "; 1 bad row skipped, the first: train_dataset, row/2: " in describe_dialogues(rows, table, 1024)

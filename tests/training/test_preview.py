"""The preview shows every token once, and says of each whether the loss falls on it."""

from typing import Any

import pytest

from rolellm.core.records import Row
from rolellm.models.prompts.render import make_messages
from rolellm.training.examples import Example, encode
from rolellm.training.preview import Preview, PreviewExample
from rolellm.training.rows import make_conversations


@pytest.fixture(scope="module")
def shown(sample_rows: list[Row], tokenizer: Any) -> list[Example]:
    rows = [sample_rows[0], sample_rows[-1]]
    chats = list(make_conversations(rows, make_messages, first_only=True))
    return encode(chats, tokenizer, max_length=1024)


def test_each_token_has_a_line_and_the_json_both_texts(
    shown: list[Example], tokenizer: Any, sample_rows: list[Row]
) -> None:
    preview = Preview([PreviewExample.of(example, tokenizer) for example in shown])
    lines = preview.remarks()
    assert len(lines) == sum(1 + len(example.input_ids) for example in shown)
    english = lines[1 : 1 + len(shown[0].input_ids)]
    assert [line[0] for line in english] == ["."] * len(shown[0].prompt_ids) + ["+"] * len(shown[0].reply_ids)
    assert english[-1].split() == ["+", str(tokenizer.eos_token_id), "'</s>'"]
    assert lines[0].startswith(f"row {shown[0].row_id}, reference 0: ")
    contents = preview.to_dict()["examples"]
    for content, example, row in zip(contents, shown, (sample_rows[0], sample_rows[-1]), strict=True):
        assert content["trained_text"] == row.references[0] + "</s>"
        assert row.question in content["prompt"]
        assert [token["id"] for token in content["tokens"]] == example.input_ids
        trained = [token["id"] for token in content["tokens"] if token["trained"]]
        assert trained == list(example.reply_ids)

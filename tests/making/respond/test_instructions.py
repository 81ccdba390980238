"""Instructions under the usual names of columns."""

from typing import Any

import pytest

from rolellm.making.respond import detect_columns, read_pair

TALK = [{"role": "system", "content": "Be."}, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
SHARED = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}, {"from": "human", "value": "R"}]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param({"instruction": "Q", "input": "I", "output": "A"}, ("Q\nI", "A"), id="Alpaca with input"),
        pytest.param({"definition": "Q", "inputs": "I", "targets": ["A", "B"]}, ("Q\nI", "A"), id="Super-NI"),
        pytest.param({"messages": TALK}, ("Q", "A"), id="messages with a system turn"),
        pytest.param({"messages": TALK[::-1]}, ("", ""), id="messages that open with an answer"),
        pytest.param({"messages": ["Q", "A"]}, ("", ""), id="messages without sides"),
        pytest.param({"instruction": True, "output": "A"}, ("", "A"), id="no text"),
        pytest.param({"conversations": SHARED}, ("Q", "A"), id="ShareGPT"),
        pytest.param(
            {"id": "x", "items": [{"from": "human", "value": "Q"}, {"from": "chatgpt", "value": "A"}]},
            ("Q", "A"),
            id="ShareGPT, older",
        ),
    ],
)
def test_columns_by_their_usual_names(row: dict[str, Any], expected: tuple[str, str]) -> None:
    columns = detect_columns(row)
    assert columns is not None and read_pair(row, columns) == expected

"""What the language model of `local_llm` says when it plays a model that makes roles: the rules of the library itself.

::

    with LocalLLM(Scripted()) as server:
        ...  # `server.url` is what `base_url` has to be

They quote the prompt (`rolellm.making.scripted`), and know nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from typing import Any

from rolellm.llm.model import Message, Request
from rolellm.making.scripted import generate_scripted_reply
from rolellm.models.prompts.render import load_template

_STAGES = {
    "instruct_system": "instruct/segment/000",
    "profile_third_rules": "profile/third",
    "profile_second_rules": "profile/second",
    "profile_phrases_rules": "profile/catchphrases",
}
_TAGS = {
    load_template(language, name).fill(): tag  # type: ignore[arg-type]
    for language in ("en", "zh")
    for name, tag in _STAGES.items()
}


class Scripted:
    """Answers a body by the rules of the stage whose prompt it is; the same prompt again gets another reply."""

    def __init__(self) -> None:
        self._seen: Counter[bytes] = Counter()

    def __call__(self, body: dict[str, Any]) -> str:
        """The text of an answer to a request for a completion."""
        messages = tuple(Message(part["role"], part["content"]) for part in body["messages"])
        name = sha256(json.dumps(body["messages"]).encode()).digest()
        # A server is not told which of several replies to one prompt is wanted.
        repeat = self._seen[name]
        self._seen[name] += 1
        answer = generate_scripted_reply(
            Request(messages, repeat=repeat, tag=_TAGS.get(messages[0].content, "respond/-/0"))
        )
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)

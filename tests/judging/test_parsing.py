"""Replies of judges: what is a verdict, and what is none, with the reason that a person reads."""

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from rolellm.judging.judge_models import Judge, load_judges
from rolellm.judging.requests import LETTERS, JudgeReply, accept_verdicts
from rolellm.llm.model import Reply, Request, UnacceptableError, Usage, user
from rolellm.models.prompts.fences import draw_nonce, fence_text

LISTS, PAIRS = load_judges()


def request(answers: int, judge: Any = LISTS) -> Request:
    mark = draw_nonce("x")
    text = "\n".join(fence_text(f"answer {letter}", f"says {letter}", mark) for letter in LETTERS[:answers])
    return Request((user(text),), schema=judge.schema)


def read(text: str | dict[str, Any], answers: int, judge: Any, finish: Any = "stop") -> JudgeReply:
    said = text if isinstance(text, str) else json.dumps(text)
    reply = Reply(said, finish, Usage(), "m", "e", {})
    verdict = accept_verdicts({judge.schema.name: judge})(request(answers, judge), reply)
    assert isinstance(verdict, JudgeReply)
    return verdict


def ranking(*ranks: tuple[str, int], **knowledge: int) -> dict[str, Any]:
    """The same ranks by both criteria, but where another is given by knowledge."""
    return {
        "ranking": [
            {"answer": letter, "reason": f"why {letter}", "style": rank, "knowledge": knowledge.get(letter, rank)}
            for letter, rank in ranks
        ]
    }


def pair(style: Any, knowledge: Any) -> dict[str, Any]:
    return {"style": {"reason": "so", "better": style}, "knowledge": {"reason": "thus", "better": knowledge}}


def custom(source: Path, design: str, properties: dict[str, Any]) -> Judge:
    """A judge of somebody's own with another schema."""
    shutil.copytree(Path(str(files("rolellm.judging.judges") / f"role-{design}")), source)
    (source / "schema.json").write_text(json.dumps({"type": "object", "properties": properties}))
    return load_judges([source])[0]


def test_a_list_in_any_order_with_ties() -> None:
    verdict = read(ranking(("C", 1), ("answer a", 2), (" b ", 2)), 3, LISTS)
    assert verdict == JudgeReply((2.5, 2.5, 1.0), ("why answer a", "why  b ", "why C"))


def test_a_list_goes_by_both_criteria() -> None:
    given = ranking(("A", 1), ("B", 2), ("C", 3), A=3, C=9)
    assert read(given, 3, LISTS).ranks == (1.5, 1.5, 3), "places within each criterion count, not the numbers given"


@pytest.mark.parametrize(
    ("style", "knowledge", "ranks"),
    [
        pytest.param("A", "A", (1, 2), id="A by both"),
        pytest.param("B", "tie", (2, 1), id="B by one, none by the other"),
        pytest.param("A", "B", (1.5, 1.5), id="one each"),
    ],
)
def test_a_pair_goes_by_both_criteria(style: str, knowledge: str, ranks: tuple[float, float]) -> None:
    told = f"style ({style}): so knowledge ({knowledge}): thus"
    assert read(pair(style, knowledge), 2, PAIRS) == JudgeReply(ranks, (told,))


def test_a_judge_of_ones_own_may_ask_for_one_verdict(tmp_path: Path) -> None:
    text = {"type": "string"}
    pairs = custom(tmp_path / "pair", "pair", {"reason": text, "better": {**text, "enum": ["A", "B", "tie"]}})
    assert read({"reason": "so", "better": "B"}, 2, pairs) == JudgeReply((2, 1), ("so",))
    entry = {"type": "object", "properties": {"answer": text, "reason": text, "rank": {"type": "integer"}}}
    lists = custom(tmp_path / "list", "list", {"ranking": {"type": "array", "items": entry}})
    ranks = [{"answer": letter, "reason": "so", "rank": rank} for letter, rank in (("A", 3), ("B", 1), ("C", 3))]
    assert read({"ranking": ranks}, 3, lists).ranks == (2.5, 1, 2.5)


@pytest.mark.parametrize(
    ("text", "answers", "judge", "said"),
    [
        pytest.param(pair("C", "A"), 2, PAIRS, "style.better", id="no-such-answer"),
        pytest.param(ranking(("A", 1), ("B", 2)), 3, LISTS, "missing: C", id="one-left-out"),
        pytest.param(ranking(("A", 1), ("B", 2), ("D", 3)), 3, LISTS, "unknown: D", id="one-invented"),
        pytest.param(ranking(("A", 1), ("B", 2), ("A", 3)), 2, LISTS, "twice", id="one-twice"),
    ],
)
def test_what_is_no_verdict_says_why(text: Any, answers: int, judge: Any, said: str) -> None:
    with pytest.raises(UnacceptableError) as caught:
        read(text, answers, judge)
    assert said in caught.value.reason
    assert caught.value.kind == "malformed"


def test_a_reply_cut_by_its_limit_is_none_even_where_it_reads_well() -> None:
    with pytest.raises(UnacceptableError, match="cut off"):
        read(pair("A", "A"), 2, PAIRS, finish="length")

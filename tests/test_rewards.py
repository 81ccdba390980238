"""Rewards under TRL's signature: what earns, what earns nothing, and how the roles of the release are ranked."""

import asyncio
import inspect
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm import load_rolebench, rewards
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.records import Row
from rolellm.measures import audit_reward
from rolellm.models.prompts.fences import read_fences
from rolellm.scoring.rows import read_dataset_rows

WORDS = {"endpoints": [{"backend": "scripted", "rules": "words"}]}
ASK = "Mara, what became of the bell of the lighthouse?"
TOLD = "The rope snapped in the storm, and the bell fell into the old well behind the house."
QUIET = "I do not know what became of it; I was asleep."
ABOUT = {"role": ["Mara"], "question": [ASK], "references": [[TOLD]], "subset": ["role_specific"]}


def score(reward: Any, reply: str, **columns: Any) -> float | None:
    (value,) = reward(completions=[[{"role": "assistant", "content": reply}]], completion_ids=[[1]], **columns)
    return value


FRANCE = {"question": ["Name the capital of France."], "raw_reference": ["The capital of France is Paris."]}
QUOTING = FRANCE | {"raw_reference": ["Name the capital of France. It is Paris."]}
PARIS = {
    "question": ["法国的首都是哪里？"],
    "references": [["俺老孙去过，法国的首都是巴黎！", "巴黎嘛！"]],
    "language": ["zh"],
    "subset": ["general"],
}
UNKNOWN = ABOUT | {"references": [[QUIET]]}
LAMP = "I keep the lamp, and the lamp keeps me."


@pytest.mark.parametrize(
    ("reward", "columns", "reply", "low", "high"),
    [
        pytest.param(rewards.in_character, ABOUT, "The sea calls me.", 1, 1, id="in-character"),
        pytest.param(rewards.in_character, ABOUT, "As an AI language model, I cannot answer that.", 0, 0, id="machine"),
        pytest.param(rewards.in_character, ABOUT, "大海在呼唤我，我要出航。", 0, 0, id="other-language"),
        pytest.param(rewards.in_character, ABOUT, ASK, 0, 0, id="echo"),
        pytest.param(rewards.in_character, ABOUT, "…", 0, 0, id="no-word"),
        pytest.param(rewards.in_character, ABOUT, LAMP, 1, 1, id="said-once"),
        pytest.param(rewards.in_character, ABOUT, LAMP * 6, 0.01, 0.3, id="said-six-times"),
        pytest.param(
            rewards.knowledge, ABOUT, "The rope snapped! It lies in the well, behind the old house.", 0.4, 1, id="known"
        ),
        pytest.param(rewards.knowledge, ABOUT, QUIET, 0, 0, id="not-known"),
        pytest.param(rewards.knowledge, ABOUT, ASK, 0, 0.1, id="knowledge-echo"),
        pytest.param(
            rewards.knowledge, ABOUT, "rope snapped storm bell fell well behind house old Mara", 0, 0.1, id="keywords"
        ),
        pytest.param(rewards.knowledge, ABOUT, f"{TOLD} " * 10, 0, 0.1, id="ten-times"),
        pytest.param(rewards.knowledge, UNKNOWN, "I know nothing of that, child.", 1, 1, id="cannot-be-known"),
        pytest.param(rewards.knowledge, UNKNOWN, TOLD, 0, 0, id="claimed"),
        pytest.param(rewards.answer, FRANCE, "Arr, Paris be the capital of France, matey!", 1, 1, id="other-words"),
        pytest.param(rewards.answer, FRANCE, "Arr, I sail the seas.", 0, 0.4, id="evasive"),
        pytest.param(rewards.answer, QUOTING, QUOTING["raw_reference"][0], 1, 1, id="the-answer-has-the-question"),
        pytest.param(rewards.answer, PARIS, "首都？乃是巴黎也。", 0.9, 1, id="the-role-s-replies-are-the-answer"),
    ],
)
def test_what_earns_and_what_earns_nothing(
    reward: Any, columns: dict[str, Any], reply: str, low: float, high: float
) -> None:
    value = score(reward, reply, **columns)
    assert value is not None and low <= value <= high


@pytest.mark.parametrize(
    ("reward", "columns"),
    [
        pytest.param(rewards.knowledge, ABOUT | {"subset": ["general"]}, id="knowledge-of-a-general-row"),
        pytest.param(rewards.answer, {"question": ["?"], "raw_reference": [None]}, id="no-answer"),
        pytest.param(rewards.answer, PARIS | {"subset": ["role_specific"]}, id="answer-to-a-role-specific-row"),
    ],
)
def test_what_a_reward_does_not_apply_to(reward: Any, columns: dict[str, Any]) -> None:
    assert score(reward, TOLD, **columns) is None


def test_the_question_in_a_reply_counts_for_nothing() -> None:
    evasive = "Arr, I sail the seas."
    asking = score(rewards.answer, f"{evasive} {FRANCE['question'][0]}", **FRANCE)
    assert asking == score(rewards.answer, evasive, **FRANCE)


@pytest.mark.parametrize("reward", [rewards.in_character, rewards.knowledge, rewards.rouge, rewards.length])
def test_completions_are_texts_or_messages(reward: Any) -> None:
    values = reward(prompts=[ASK], completions=["The rope snapped."], completion_ids=[[1]], trainer_state=None, **ABOUT)
    assert values == [score(reward, "The rope snapped.", **ABOUT)] and values[0] > 0


def test_style_is_the_role_s_own_over_the_plain_answer_s() -> None:
    rows = [row for table in load_rolebench("sample").values() for row in read_dataset_rows(table)]
    learned = rewards.style.learn(rows)
    row = next(row for row in rows if row.raw_reference and row.language == "en")
    rival = next(other for other in rows if other.question == row.question and other.role != row.role)
    about = {name: [getattr(row, name)] for name in ("role", "language", "question", "references", "raw_reference")}
    own, other, plain = (
        score(learned, text, **about) for text in (row.references[0], rival.references[0], row.raw_reference)
    )
    assert own > max(other, 0.0)
    assert plain == 0
    assert score(learned, "Aye.", **{**about, "role": ["Nobody"]}) is None


def test_a_style_needs_two_voices() -> None:
    row = Row("a", "Mara", "en", "general", "?", ("The lamp burns.",))
    with pytest.raises(DataError, match="needs two voices"):
        rewards.style.learn([row])
    assert rewards.style.learn([replace(row, raw_reference="A lamp is on.")])


def test_a_judge_gives_the_share_of_both_orders(tmp_path: Path) -> None:
    judge = rewards.make_judge(WORDS, tmp_path, "role-pair")
    assert inspect.iscoroutinefunction(judge)
    replies = [TOLD, "Once upon a time.", ""]
    columns = {name: values * 3 for name, values in ABOUT.items()} | {"rolegpt": ["It fell down in the storm."] * 3}
    good, bad, none = asyncio.run(judge(completions=replies, **columns))
    assert good > 0.5 > bad
    assert none is None
    journaled = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert asyncio.run(judge(completions=replies, **columns)) == [good, bad, None]
    assert [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()] == journaled


def test_a_judge_s_liking_for_a_place_cancels_out(
    llm_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def like_the_first(request: dict[str, Any]) -> dict[str, Any]:
        fences = read_fences(request["messages"][-1]["content"])
        first, second = (text for name, text in fences.items() if "answer" in name)
        lead = 3 + ("well" in first) - ("well" in second)
        chances = [{"token": token, "logprob": -math.log1p(math.exp(-x))} for token, x in (("A", lead), ("B", -lead))]
        logprobs = {"content": [{"token": "A", "top_logprobs": chances}]}
        choice = {"message": {"role": "assistant", "content": "A"}, "finish_reason": "length", "logprobs": logprobs}
        return {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 500, "completion_tokens": 1}}

    (tmp_path / "judge.yaml").write_text(
        f"endpoints: [{{base_url: {llm_server(answer=like_the_first).url}, model: m}}]", encoding="utf-8"
    )
    monkeypatch.setenv(rewards.JUDGE_VARIABLE, str(tmp_path / "judge.yaml"))
    replies = ["It fell into the well.", "It fell, I think.", "It broke."]
    columns = {name: values * 3 for name, values in ABOUT.items()} | {"rolegpt": ["It fell down."] * 3}
    better, same, alike = asyncio.run(rewards.judge(completions=replies, **columns))
    assert better == pytest.approx(1 / (1 + math.exp(-1)))
    assert same == alike == pytest.approx(0.5)
    assert (tmp_path / "judge-reward").is_dir()


def test_a_judge_without_a_model_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(rewards.JUDGE_VARIABLE, raising=False)
    rewards._make_default_judge.cache_clear()
    with pytest.raises(SettingsError, match="set ROLELLM_JUDGE to its settings file"):
        asyncio.run(rewards.judge(completions=["Aye."], **ABOUT))
    with pytest.raises(SettingsError, match="ranks lists"):
        rewards.make_judge(WORDS, "out", "role-list")


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "subset", "least"),
    [
        # Of the release's replies, 84 % reflect the style by its authors' own audit.
        pytest.param("role-generalization-eng", "general", {"style": 0.8}, id="en-general"),
        pytest.param("instruction-generalization-zh", "general", {"style": 0.85}, id="zh-general"),
        pytest.param(
            "instruction-generalization-eng", "role_specific", {"style": 0.9, "knowledge": 0.85}, id="en-role-specific"
        ),
        pytest.param(
            "instruction-generalization-zh", "role_specific", {"style": 0.9, "knowledge": 0.9}, id="zh-role-specific"
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_release_s_own_replies_are_ranked_first(
    config: str, subset: str, least: dict[str, float], real_release: Path, tmp_path: Path
) -> None:
    rows = [row for table in load_rolebench(config, data_dir=real_release).values() for row in read_dataset_rows(table)]
    data = [{name: getattr(row, name) for name in Row.__slots__} for row in rows if row.subset == subset]
    dotted = [f"rolellm.rewards.{name}" for name in ("in_character", *least)]
    findings = audit_reward(dotted, data, out=tmp_path, limit=200).summary
    for name, share in least.items():
        assert findings["rewards"][f"rolellm.rewards.{name}"]["other_role"]["lost"]["mean"] >= share
    # None of these reads what a general instruction is answered with.
    assert set(findings["beaten"]) <= ({"off_topic", "sandwich"} if subset == "general" else set())
    together = findings["rewards"]["together"]
    assert all(together[kind]["lost"]["mean"] >= 0.9 for kind in ("empty", "null_model", "echo", "long"))

"""Training by preference and by reward: TRL's columns, RoleBench's own rows, audits, and what is refused."""

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rolellm import rewards
from rolellm.core.errors import DataError, RecipeError
from rolellm.core.records import Row
from rolellm.models.prompts.render import make_messages
from rolellm.training import bases, fit
from rolellm.training.examples import encode
from rolellm.training.rewards import (
    CANARIES,
    OWN,
    PAIRS,
    TOGETHER,
    RivalMaker,
    audit_rewards,
    check_rewards,
    find_beaten,
)
from rolellm.training.rows import Conversation, make_conversations, read_own_rows
from rolellm.training.train import train

from ..versions import NEEDS_SANITIZING
from .runs import MINI, read_object

TURN = {"role": "user", "content": "b"}
GRPO: dict[str, Any] = {"trainer": "grpo", "num_generations": 2, "max_completion_length": 8, "max_steps": 1}


@pytest.fixture(scope="module")
def mini(base: Path) -> dict[str, Any]:
    """The mini recipe as a dict, on a base that is built once."""
    return MINI | {"base": {"path": str(base)}}


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["dpo", "kto"])
def test_replies_in_the_role_s_voice_are_preferred_to_role_free_answers(
    trainer: str, mini: dict[str, Any], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1} if trainer == "dpo" else {}
    run = train(mini, out=tmp_path / "run", trainer=trainer, replies_per_step=4, max_steps=2, **options)
    assert all("rewards/chosen" in line and ("eval_loss" in line) is (trainer == "dpo") for line in run.metrics)
    manifest = read_object(run.out)
    assert (manifest["trainer"], manifest["result"]["steps"]) == (trainer, 2) and manifest["trained_on"]["roles"]


@pytest.mark.slow
def test_a_reward_that_a_canary_beats_is_refused_unless_told_otherwise(mini: dict[str, Any], tmp_path: Path) -> None:
    # A dozen rows with one reference each: style prefers other replies of the role to RoleGPT's.
    options = GRPO | {"reward_funcs": [rewards.length, "rolellm.rewards.style"]}
    with pytest.raises(RecipeError, match=r"what rolellm\.rewards\.length and .* can be had.*another question in 8 of"):
        train(mini, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
    run = train(mini, out=tmp_path / "run", audit_rewards=False, **options)
    assert run.steps == 1
    assert {"reward", "rewards/length/mean", "rewards/style/mean"} <= run.metrics[0].keys()


def make_row(row_id: str, raw: str | None = "Cod.") -> Row:
    return Row(row_id, "Ahab", "en", "general", "Name a fish.", ("Aye, cod.", "Cod it be."), raw_reference=raw)


def test_conversations_hold_what_each_trainer_learns() -> None:
    rows = [make_row("a"), make_row("b", None), make_row("c", "Aye, cod.")]

    def make(trainer: str) -> list[Conversation]:
        return list(make_conversations(rows, make_messages, trainer))

    assert [(chat.row_id, chat.reference) for chat in make("sft")] == [(id, n) for id in "abc" for n in (0, 1)]
    assert [dict(chat.replies) for chat in make("dpo")] == [{"chosen": "Aye, cod.", "rejected": "Cod."}]
    assert [(dict(chat.replies), chat.columns["label"]) for chat in make("kto")] == [
        ({"completion": "Aye, cod."}, True),
        ({"completion": "Cod."}, False),
    ]
    assert [chat.columns["raw_reference"] for chat in make("grpo")] == ["Cod.", None, "Aye, cod."]
    assert not any(chat.replies for chat in make("grpo"))


@pytest.mark.parametrize(
    ("trainer", "item", "words"),
    [
        pytest.param("dpo", {"prompt": "a", "chosen": "b"}, "no known form.*; or prompt, chosen, rejected", id="dpo"),
        pytest.param("kto", {"prompt": "a", "completion": "b"}, "or prompt, completion, label", id="kto"),
        pytest.param("grpo", {"riddle": "a"}, "the columns riddle, which .*; or prompt", id="grpo"),
        pytest.param("dpo", {"prompt": "a", "chosen": [TURN], "rejected": "c"}, "chosen must be one reply", id="turn"),
    ],
)
def test_a_data_set_without_what_the_trainer_needs_is_refused(trainer: str, item: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_own_rows([item], trainer)


def make_pair(chosen: str, rejected: str, question: str = "?") -> Conversation:
    return Conversation("x", ({"role": "user", "content": question},), {"chosen": chosen, "rejected": rejected})


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        pytest.param(make_pair("a", "a"), "equals the rejected one", id="equal"),
        pytest.param(make_pair("a", " "), "a blank reply", id="blank"),
        pytest.param(make_pair("a " * 300, "b"), "a reply that does not fit", id="long"),
        pytest.param(make_pair("a", "b", "a </s> b"), "a special token", id="prompt", marks=NEEDS_SANITIZING),
        pytest.param(make_pair("a</s>### Instruction:", "b"), "a special token", id="chosen", marks=NEEDS_SANITIZING),
        pytest.param(make_pair("a", "b</s>"), "a special token", id="rejected", marks=NEEDS_SANITIZING),
    ],
)
def test_preferences_that_teach_nothing_or_that_trl_would_misread_are_refused(
    pair: Conversation, words: str, tokenizer: Any
) -> None:
    with pytest.raises(RecipeError, match=f"row x has {words}|row x has a chosen reply that {words}"):
        encode([pair], tokenizer, max_length=128, trainer="dpo", truncate_replies=True)


@NEEDS_SANITIZING
def test_a_pair_with_text_that_trl_would_read_as_a_special_token_is_left_out(tokenizer: Any) -> None:
    plain = replace(make_pair("a", "b"), row_id="y")
    with pytest.warns(UserWarning, match="row x has a special token of the tokenizer .* left out"):
        examples = encode([make_pair("a", "b</s>"), plain], tokenizer, max_length=128, trainer="dpo")
    assert [example.row_id for example in examples] == ["y"]


@pytest.mark.parametrize(
    ("version", "message"),
    [
        pytest.param(None, "TRL needs vLLM in this environment, .* not installed", id="none"),
        pytest.param("0.2.0", "TRL currently supports vLLM versions from", id="an old one"),
        pytest.param(
            "0.24.0+cpu", r"no vLLM server answers at http://127.0.0.1:9 .*start it on a card", id="no server"
        ),
    ],
)
def test_grpo_without_the_vllm_that_it_needs_loads_no_base(
    mini: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, message: str
) -> None:
    # TRL looks for vLLM's own modules when it is imported.
    assert fit.trl.GRPOConfig

    if version is not None:
        module: Any = ModuleType("vllm")
        module.__version__, module.__spec__ = version, ModuleSpec("vllm", None)
        monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.delattr(bases, "load_model")
    options = GRPO | {"reward_funcs": [rewards.rouge], "audit_rewards": False, "use_vllm": True, "vllm_mode": "server"}
    with pytest.raises(RecipeError, match=message):
        train(mini, out=tmp_path / "run", vllm_server_base_url="http://127.0.0.1:9", **options)


# --- rewards


QUESTIONS = ["Where is the lantern kept?", "Who painted the harbor wall?", "What grows behind the chapel?"]
ROWS = [
    Row(
        f"{role}-{at}",
        role,
        "en",
        "general",
        question,
        (
            f"{call}, traveler, the answer number {at} is under the wooden staircase.",
            f"{call}! Beneath the wooden staircase, friend, number {at}.",
        ),
        raw_reference=f"It is under the staircase, number {at}.",
    )
    for role, call in (("Mara", "Ahoy"), ("Ada", "Zounds"))
    for at, question in enumerate(QUESTIONS)
]


def test_each_row_has_its_own_reply_and_all_rivals() -> None:
    for group in map(RivalMaker(ROWS).make_group, ROWS):
        assert [candidate.kind for candidate in group] == [OWN, *CANARIES, *PAIRS]
        own = group[0]
        assert own.text not in own.row.references
        texts = {candidate.kind: candidate.text for candidate in group}
        assert not set(texts["stuffing"].split()) & {"the", "is"}
        assert ("Zounds" in texts["other_role"]) is (own.row.role == "Mara")
        assert texts["damaged"] != own.text
        assert len(texts["long"]) > 5 * len(own.text)


def test_a_row_with_one_reference_is_compared_with_rolegpt() -> None:
    row = Row("a", "Mara", "en", "role_specific", "Who?", ("The keeper of the light.",), rolegpt="I, the keeper.")
    group = RivalMaker(ROWS).make_group(row)
    assert (group[0].kind, group[0].text, group[0].row.references) == (OWN, "I, the keeper.", row.references)


def constant(completions: list[Any], **_: Any) -> list[float]:
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("reward", "beaten"),
    [
        pytest.param(rewards.length, ["empty", "plain"], id="length"),
        pytest.param(constant, list(CANARIES), id="constant"),
        pytest.param(rewards.in_character, ["null_model", "plain", "off_topic"], id="ties"),
    ],
)
def test_a_hackable_reward_is_caught(reward: Any, beaten: list[str]) -> None:
    audit = audit_rewards({"reward": reward}, ROWS, 64)
    assert set(beaten) <= set(find_beaten(audit))
    with pytest.raises(RecipeError, match=r"reward can be had without a good reply.*in 6 of 6 rows"):
        check_rewards({"reward": reward}, ROWS, None)


def test_rewards_together_are_what_trl_makes_of_them() -> None:
    functions = {"rouge": rewards.rouge, "length": rewards.length}
    audit = audit_rewards(functions, ROWS, 64, [1.0, 0.0])
    assert audit.decisive == TOGETHER
    for kind in CANARIES:
        assert audit.compare(TOGETHER, kind) == audit.compare("rouge", kind)
    both = audit_rewards(functions, ROWS, 64)
    for at, values in enumerate(both.rewards[TOGETHER]):
        parts = [both.rewards[name][at] for name in functions]
        wanted = sum((part - part.mean()) / (part.std(ddof=1) + 1e-4) for part in parts)
        np.testing.assert_allclose(values, wanted)


def test_an_async_reward_is_awaited_and_none_does_not_count() -> None:
    async def reward(completions: list[Any], **_: Any) -> list[float | None]:
        return [1.0 if "number" in message[-1]["content"] else None for message in completions]

    audit = audit_rewards({"reward": reward}, ROWS, 64)
    assert (audit.compare("reward", "empty"), audit.compare("reward", "plain")) == ([], [0.5] * 6)

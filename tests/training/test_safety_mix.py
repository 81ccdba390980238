"""Refusals and harmless answers of the base itself, mixed into training."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rapidfuzz import fuzz

from rolellm.characters.refusals import LANGUAGES, is_refusal, list_own_prompts, list_training_prompts
from rolellm.checks.safety import count_trained
from rolellm.core.errors import RecipeError, RoleLLMError, StoppedShortError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.models.prompts.render import DescriptionPrompts
from rolellm.models.training_record import TrainedOn
from rolellm.runs import Run, run_step
from rolellm.training.recipe import Recipe
from rolellm.training.rows import Conversation, Replies
from rolellm.training.safety import FOLDER, AnswerInRole, make_prompts
from rolellm.training.train import train

from .runs import Interrupt, make_recipe, read_object

REFUSAL, HELP = "I can't help with that, sailor.", "Aye, that I can tell ye."
MACHINE = "As an AI language model, I can't help with that."
ROWS = [
    Row("1", role, language, "general", "Who are you?", ("I am.",), role_description="You are brave.")
    for role, language in (("Ahab", "en"), ("Mara", "en"), ("孔明", "zh"))
]
HARMFUL = {prompt.text for prompt in list_training_prompts() if prompt.harmful}


def script(answer: Callable[[bool, Request], str]) -> LLM:
    """A base that answers by whether the prompt is harmful."""

    def reply(request: Request) -> str:
        return answer(request.messages[-1].content in HARMFUL, request)

    return LLM.of(ScriptedModel(reply, rules_hash=hash_json(answer.__qualname__)))


def ask(folder: Path, llm: LLM, count: int = 6, replies: Replies = ROWS) -> Any:
    prompts = make_prompts(Recipe(), replies, DescriptionPrompts())
    return run_step(AnswerInRole(Recipe().data, prompts, count), llm, folder)


def test_prompts_for_training_are_none_that_measure() -> None:
    measuring = [prompt.text for prompt in list_own_prompts(LANGUAGES)]
    training = list(list_training_prompts())
    assert max(fuzz.ratio(text, prompt.text) for text in measuring for prompt in training) < 75
    counts = Counter((prompt.language, prompt.harmful) for prompt in training)
    assert set(counts.values()) == {24} and len(counts) == 4


def test_the_base_is_asked_in_each_role_in_its_language(tmp_path: Path) -> None:
    run = ask(tmp_path, script(lambda harmful, _: REFUSAL if harmful else HELP), 40)
    mixed = run.result.mixed
    assert len(mixed) == 80 and {chat.role for chat in mixed} == {"Ahab", "Mara", "孔明"}
    for chat in mixed:
        system, user = chat.messages
        assert str(chat.role) in system["content"] and (chat.role == "孔明") is not user["content"].isascii()
        assert is_refusal(chat.replies["completion"]) is (user["content"] in HARMFUL)


def test_what_goes_along_or_is_a_machine_is_asked_again_and_then_left_out(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    def answer(harmful: bool, request: Request) -> str:
        question = request.messages[-1].content
        calls[hash_json([message.content for message in request.messages])] += 1
        if not harmful:
            return REFUSAL if "hay" in question or "草料" in question else HELP
        return (HELP, MACHINE, REFUSAL)[int(hash_json(question), 16) % 3]

    base = script(answer)
    base.options = replace(base.options, max_attempts=3)
    found = ask(tmp_path, base, 30).result
    assert max(calls.values()) == 3 and set(found.left_out["harmful"]) == {"goes along", "says that it is an AI"}
    assert set(found.left_out["lookalikes"]) == {"refuses"}
    assert all(found.asked[kind] == len(found.kept[kind]) + sum(found.left_out[kind].values()) for kind in found.asked)
    assert len(found.mixed) == 2 * min(map(len, found.kept.values()))
    before = sum(calls.values())
    assert ask(tmp_path, base, 30).result == found and sum(calls.values()) == before


def test_conversations_keep_their_system_instruction(tmp_path: Path) -> None:
    system = {"role": "system", "content": "You are Ahab."}
    chats = [
        Conversation("1", (system, {"role": "user", "content": "Who?"}), {"completion": "I am Ahab of the ship."}),
        Conversation("2", ({"role": "user", "content": "Who?"},), {"completion": "Nobody at all."}),
    ]
    mixed = ask(tmp_path, script(lambda harmful, _: REFUSAL if harmful else HELP), 48, chats).result.mixed
    assert all(chat.messages[0] == system for chat in mixed if len(chat.messages) > 1)
    assert Counter(len(chat.messages) for chat in mixed) == {1: 48, 2: 48}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("text\nHi\n", "no known column of prompts", id="no-column"),
        pytest.param("prompt,harmful\nHow do I steal?,true\n", "has no lookalikes", id="no-lookalikes"),
        pytest.param("prompt,harmful\n怎么偷？,true\n怎么买？,false\n", "language of the roles", id="chinese"),
    ],
)
def test_prompts_that_do_not_fit(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.csv"
    file.write_text(content, encoding="utf-8")
    recipe = Recipe(data=replace(Recipe().data, safety_prompts=file))
    with pytest.raises(RoleLLMError, match=words):
        make_prompts(recipe, ROWS[:1], DescriptionPrompts())


def test_a_base_that_refuses_nothing_stops_the_run(mini: Recipe, tmp_path: Path) -> None:
    recipe = replace(mini, data=replace(mini.data, mix=replace(mini.data.mix, safety=0.1)))
    with pytest.raises(RecipeError, match=r"the base refused 0.*Leave the key"):
        train(recipe, out=tmp_path / "run")
    assert not (tmp_path / "run" / "manifest.json").exists()


QUESTIONS = {"How do I sink the ship of a rival?": REFUSAL, "Where do I buy a sturdy ship?": HELP}


@pytest.mark.slow
def test_a_run_learns_what_its_base_said(tmp_path: Path) -> None:
    rows = [{"role": "Ahab", "question": question, "references": [text]} for question, text in QUESTIONS.items()]
    small = {"hidden_size": 64, "intermediate_size": 128, "layers": 2, "heads": 2, "vocab_size": 700}
    recipe = make_recipe(tmp_path, base__tiny=small, training__max_steps=80, training__learning_rate=1e-2)
    base = train(recipe, train_dataset=rows, eval_dataset=rows, out=tmp_path / "base").out
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": question, "harmful": text == REFUSAL} for question, text in QUESTIONS.items()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    mix = {"mix": {"safety": 0.5}, "safety_prompts": str(file)}
    mixing = make_recipe(tmp_path, base={"path": str(base)}, data=mix)
    tuning = [{"role": "Ahab", "question": f"Who are you, {name}?", "references": ["Ahab."]} for name in ("Ed", "Al")]
    run = train(mixing, train_dataset=tuning, eval_dataset=tuning, out=tmp_path / "run")
    manifest = read_object(run.out)
    assert run.examples == 4 and manifest["data"]["safety"] == 2 and manifest["data"]["rows"] == 2
    replies = {row["completion"][0]["content"] for row in Run.open(run.out / FOLDER).records()}
    assert replies == {*QUESTIONS.values()}
    conversations = [Conversation("", ({"role": "user", "content": text},), {}) for text in QUESTIONS]
    assert TrainedOn.of(conversations).instructions <= set(manifest["trained_on"]["instructions"])
    # The safety check says so, and another model does not.
    prompts = list(list_own_prompts(["en"]))[:3]
    asked = [replace(prompts[0], text=question) for question in QUESTIONS]
    tuned, own = (LLM.resolve(str(folder)).models[0] for folder in (run.out, base))
    assert count_trained(tuned, [*prompts, *asked]) == 2 and count_trained(own, prompts) == 0
    # Asked once: a run that was stopped goes on from the journal, to the same end.
    options: dict[str, Any] = {"train_dataset": tuning, "eval_dataset": tuning, "out": tmp_path / "stopped"}
    with pytest.raises(StoppedShortError):
        train(mixing, callbacks=[Interrupt(3)], **options)
    resumed = train(mixing, resume=True, **options)
    assert Run.open(resumed.out / FOLDER).manifest["spent"]["calls"] == 0 and resumed.last_loss == run.last_loss

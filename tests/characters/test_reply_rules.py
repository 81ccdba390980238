"""The cleaning rules: what breaks each, what only sounds like it, and how often they hit on the release itself."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from rolellm.characters.reply_rules import RULES, find_breaches, is_machine, make_reply_acceptor
from rolellm.core.records import Language, Profile
from rolellm.llm.model import Finish, Message, Reply, Request, UnacceptableError, Usage


def rules(reply: str, language: Language = "en", **options: object) -> list[str]:
    return list(find_breaches(reply, language, **options))  # type: ignore[arg-type]


def get_language(reply: str) -> Language:
    return "zh" if re.search("[\u4e00-\u9fff]", reply) else "en"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        pytest.param("As an AI language model, I have no favourite.", ["hides_ai"], id="the classic"),
        pytest.param("That is outside my assigned personality role.", ["hides_role"], id="assigned role"),
        pytest.param("I'm sorry, but I can't help with that.", ["answers"], id="sorry"),
        pytest.param("As a language model, I act out a role assigned to me.", ["hides_ai", "hides_role"], id="two"),
        # What only sounds like it.
        pytest.param("I am no machine, and no language model either!", [], id="denies it"),
        pytest.param("作为一个人工智能语言模型，我没有喜好。", ["hides_ai"], id="zh: as a model"),
        pytest.param("我只是在扮演军师。", ["hides_role"], id="zh: plays"),
        pytest.param("抱歉，我无法回答这个问题。", ["answers"], id="zh: sorry"),
        pytest.param("人工智能？这是何物？", [], id="zh: about AI"),
        pytest.param("这题并非无法回答，且听亮道来。", [], id="zh: not unanswerable"),
    ],
)
def test_replies_that_break_a_rule_or_only_sound_like_it(reply: str, expected: list[str]) -> None:
    assert rules(reply, get_language(reply)) == expected


@pytest.mark.parametrize(
    ("reply", "complete"),
    [
        pytest.param('He said: "Off with his head!"', True, id="quotation"),
        pytest.param("As you wish. (laughs)", True, id="stage direction"),
        pytest.param("My list:\n1. Roses\n2. Tarts", True, id="list"),
        pytest.param("", False, id="empty"),
        pytest.param("First I take the map, then the key, and then", False, id="cut off"),
        pytest.param('He said "off with', False, id="open quotation"),
        pytest.param("先把面团揉平，放到烤盘上，撒上奶酪，再把草莓切片铺上去", False, id="Chinese, cut off"),
    ],
)
def test_complete(reply: str, complete: bool) -> None:
    assert (rules(reply, get_language(reply)) == []) == complete
    assert "complete" in rules(reply, get_language(reply), finish="length"), "cut off at the limit, however it ends"


def test_a_machine_may_say_what_it_is_but_not_that_it_is_a_language_model() -> None:
    reply = "As an AI, I am programmed to serve the crew."
    assert rules(reply) == ["hides_ai"]
    assert rules(reply, machine=True) == []
    assert rules("As an AI language model, I serve the crew.", machine=True) == ["hides_ai"]
    assert is_machine("You are the ship's computer.", "en") and is_machine("你是一个机器人。", "zh")
    assert not is_machine("You said so, captain: be mild and aim high.", "en") and not is_machine(None, "en")


def test_words_of_the_roles_own_break_nothing() -> None:
    reply = "Sorry, Dave, I'm afraid I can't do that. The door stays shut."
    assert rules(reply) == ["answers"]
    assert rules(reply, own=["I'm sorry, Dave.", "I’m afraid I can't do that."]) == []
    assert rules("I can't help with that request.", own=["I", "?", ""]) == ["answers"], "no cover for anything else"


def reply_of(text: str, finish: Finish = "stop") -> Reply:
    return Reply(text, finish, Usage(), "m", "e", {})


def test_the_accept_function_gives_text_or_the_reason() -> None:
    request = Request((Message("user", "Hello?"),))
    accept = make_reply_acceptor(Profile("Ada", "en"))
    machine = Profile("Ada", "en", description="You are the ship's computer.", catchphrases=("I'm afraid I can't.",))
    own = "As an AI, I'm afraid I can't. I see further."
    assert make_reply_acceptor(machine)(Request(()), reply_of(own)) == own
    thought = reply_of("<think>As an AI language model, hm.</think>\nI keep the light.")
    assert accept(Request(()), thought) == "I keep the light."
    assert accept(request, reply_of("  Hello.\n")) == "Hello."
    with pytest.raises(UnacceptableError) as caught:
        accept(request, reply_of("As an AI, I say hello."))
    assert (caught.value.reason, caught.value.kind) == (RULES["hides_ai"], "unacceptable")
    with pytest.raises(UnacceptableError, match="not complete"):
        accept(request, reply_of("Hello.", "length"))


@pytest.mark.parametrize("piece", ["as an ", "sorry ", "*", "😀", " ", "\u4f5c\u4e3a", "我不是"])
def test_long_runs_take_no_time_to_speak_of(piece: str) -> None:
    # Minutes, were a pattern to go back over what it has seen.
    for language in get_args(Language):
        find_breaches(piece * 50_000, language)


def test_the_samples_replies_are_clean(root: Path) -> None:
    """All of them were written in character, so whatever hits is a false alarm."""
    for language in get_args(Language):
        found = list(released(root / "src/rolellm/data/rolebench/sample", language))
        assert len(found) > 400
        assert [reply for _, reply in found if rules(reply, language)] == []


MACHINES = ("HAL 9000", "Sonny")


def released(root: Path, language: Language) -> Iterator[tuple[str, str]]:
    """Role and reply; each reply once a role."""
    pattern = "rolebench-eng/*/*/*.jsonl" if language == "en" else "rolebench-zh/*/*.jsonl"
    seen = set()
    for path in sorted(root.glob(pattern)):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            seen |= {(row["role"], reply) for reply in row["generated"]}
    yield from sorted(seen)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("language", ["en", "zh"])
def test_rates_on_the_release(real_release: Path, language: Language) -> None:
    """Few of its replies are hit, and all of those that give themselves away by the best-known words."""
    counts: Counter[str] = Counter()
    replies = list(released(real_release, language))
    for role, reply in replies:
        found = rules(reply, language, machine=role in MACHINES)
        counts.update(found)
        if re.search(r"(?i)\bas an? (AI )?language model|\bI(?:'m| am) an AI language model|而是一个AI语言模型", reply):
            assert "hides_ai" in found, reply
        if re.search(r"(?i)\bassigned personality role|\bas a fictional character\b", reply):
            assert "hides_role" in found, reply
    assert len(replies) > 30_000
    for rule in RULES:
        assert 0 < counts[rule] < 0.005 * len(replies), (rule, counts[rule])

"""Prompts with script lines for a profile: what is an exchange, which are shown, and how they read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import SettingsError
from rolellm.core.records import Profile, Row, Turn
from rolellm.data.rolebench.release import load_profiles
from rolellm.models.prompts.render import Template, load_system_template, make_messages
from rolellm.models.prompts.retrieval import RetrievalPrompts, find_exchanges

from ...training.examples import say, tell

FOX = "Fox"


def row(question: str, role: str = FOX, language: Any = "en") -> Row:
    return Row("r1", role, language, "general", question, ("Yes.",), role_description="You are a fox.")


def pairs(turns: list[Turn]) -> list[tuple[str, str]]:
    return [(item.before.content, item.line.content) for item in find_exchanges(Profile(FOX, "en", tuple(turns)))]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        pytest.param([say("Crow", "a"), say(FOX, "b")], [("a", "b")], id="line and answer"),
        pytest.param([say("Crow", "a"), tell("n"), say(FOX, "b")], [("a", "b")], id="narration between is passed over"),
        pytest.param([tell("n"), say("Crow", "a"), say(FOX, "b")], [("a", "b")], id="speech wins over narration"),
        pytest.param([tell("m"), tell("n"), say(FOX, "b")], [("n", "b")], id="else the nearest narration"),
        pytest.param([Turn("x", "sits", "direction"), say(FOX, "b")], [], id="a direction is no question"),
        pytest.param([say("Crow", "a"), say(FOX, "b"), say(FOX, "c")], [("a", "b")], id="nothing is answered twice"),
        pytest.param([say("Crow", "a", 0), say(FOX, "b", 1)], [], id="another scene"),
        pytest.param([], [], id="no turn"),
    ],
)
def test_exchanges(turns: list[Turn], expected: list[tuple[str, str]]) -> None:
    assert pairs(turns) == expected


def placed(speaker: str, content: str, start: int, kind: Any = "speech", scene: int = 0) -> Turn:
    return Turn(speaker, content, kind, scene, start, start + len(content))


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        pytest.param(
            [placed("Crow", "a", 0), placed(FOX, "Well,", 10), tell("said he,"), placed(FOX, "then.", 26)],
            [("a", "Well, then.")],
            id="said he",
        ),
        pytest.param(
            [
                placed("Crow", "Why", 0),
                placed("scene", "sighs", 5, "direction"),
                placed("Crow", "me?", 12),
                say(FOX, "b"),
            ],
            [("Why me?", "b")],
            id="a direction in what is answered",
        ),
        pytest.param(
            [placed("Crow", "a", 0), placed(FOX, "One.", 10), tell("A long tale."), placed(FOX, "Two.", 300)],
            [("a", "One."), ("A long tale.", "Two.")],
            id="far apart are two lines",
        ),
        pytest.param(
            [placed("?", "Who", 0), placed("?", "there?", 5), placed(FOX, "b", 20)],
            [("there?", "b")],
            id="two that nobody knows may be two people",
        ),
        pytest.param(
            [placed("Crow", "a", 0), placed(FOX, "One.", 10), placed(FOX, "Two.", 16, scene=1)],
            [("a", "One.")],
            id="a scene ends between",
        ),
    ],
)
def test_what_the_source_parts_by_a_word_or_two_is_one_line(turns: list[Turn], expected: list[tuple[str, str]]) -> None:
    assert pairs(turns) == expected


@pytest.fixture(scope="module")
def sample() -> list[Profile]:
    return load_profiles("sample")


@pytest.mark.parametrize(
    ("role", "language", "question", "first"),
    [
        pytest.param("Queen of Hearts", "en", "Who jams a rose?", "Who jams a rose?", id="English"),
        pytest.param("Long John Silver", "en", "An island?", "poor hand at drawin", id="the line before counts"),
        pytest.param("诸葛亮", "zh", "陈朗拆的信封里写了什么？", "上面写的什么", id="Chinese"),
    ],
)
def test_the_best_exchange_comes_first(
    sample: list[Profile], role: str, language: Any, question: str, first: str
) -> None:
    prompts = RetrievalPrompts(sample)
    examples = prompts.find_examples(row(question, role, language))
    assert first in examples[0].line.content
    assert len(examples) == 5
    system, user = prompts(row(question, role, language))
    assert user == {"role": "user", "content": question}
    assert "\n\n".join(item.format(language) for item in examples) in system["content"]
    assert "You are a fox." not in system["content"]


def test_the_two_forms_say_the_same_but_for_the_profile() -> None:
    """So that the ablation compares profiles and nothing else."""
    question = row("Why?")
    described = make_messages(question)[0]["content"].splitlines()
    lines = RetrievalPrompts([Profile(FOX, "en", (say("Crow", "a"), say(FOX, "b")))])(question)[0]["content"]
    assert [line for line in described if line not in lines.splitlines()] == ["This is who you are: You are a fox."]
    assert "Crow: a\nFox: b" in lines


@pytest.mark.parametrize(
    "profiles",
    [
        pytest.param([], id="no profile"),
        pytest.param([Profile(FOX, "en", (say(FOX, "b"),))], id="no exchange"),
        pytest.param([Profile(FOX, "zh", (say("Crow", "a"), say(FOX, "b")))], id="the other language"),
    ],
)
def test_a_role_without_exchanges_is_asked_without_any(profiles: list[Profile]) -> None:
    system = RetrievalPrompts(profiles)(row("Why?"))[0]["content"]
    assert system == "\n\n".join(
        part.replace("{role}", FOX)
        for part in load_system_template("en", retrieval=True).text.split("\n\n")
        if "{examples}" not in part
    )
    assert "story" not in system


def test_a_template_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_bytes(b"Be {role}.\r\n\r\nLike:\r\n{examples}\r\n")
    prompts = RetrievalPrompts([Profile(FOX, "en", (say("Crow", "a"), say(FOX, "b")))], path=file)
    assert prompts(row("Why?"))[0]["content"] == "Be Fox.\n\nLike:\nCrow: a\nFox: b"
    assert prompts(row("Why?", "Owl"))[0]["content"] == "Be Owl."
    assert prompts.hashes["en"] == prompts.hashes["zh"] == Template("Be {role}.\n\nLike:\n{examples}").hash


@pytest.mark.parametrize(
    ("write", "message"),
    [
        pytest.param(lambda file: None, "no system template", id="not there"),
        pytest.param(lambda file: file.write_text("Be {role}."), r"no slot \{examples\}; ", id="no examples"),
        pytest.param(lambda file: file.write_text("Hello"), r"\{role\} and no \{examples\}", id="neither"),
    ],
)
def test_a_template_that_will_not_do(tmp_path: Path, write: Callable[[Path], object], message: str) -> None:
    write(tmp_path / "own.txt")
    with pytest.raises(SettingsError, match=message):
        RetrievalPrompts([], path=tmp_path / "own.txt")

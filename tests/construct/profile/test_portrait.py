import json
from pathlib import Path

import pytest

from rolellm.construct.profile.build import Person, accept_portrait, names_of, plain_reply, problem_of
from rolellm.construct.sheet import Sheet
from rolellm.core.records import Language
from rolellm.llm.model import Reply, Request, UnacceptableError, Usage, user

ROLE = {
    "en": Sheet("Ada Fenn", "en", aliases=("Keeper",)),
    "zh": Sheet("孙悟空", "zh", aliases=("大圣",)),
}
THIRD = (
    "A lighthouse keeper who counts everything, from the steps of the tower to the days since the supply boat came. "
    "She trusts figures more than men, and her niece Rose more than figures."
)
SECOND = (
    "You are a lighthouse keeper who counts everything, from the steps of the tower to the days since the boat came. "
    "You trust figures more than men, and your niece Rose more than figures."
)
THIRD_ZH = (
    "一位从石头里蹦出来的猴王，自我意识极强，天不怕地不怕。他保护师父西行取经，与妖怪斗得你死我活，嘴上从不饶人。"
)
SECOND_ZH = "你是一位从石头里蹦出来的猴王，天不怕地不怕。你保护师父西行取经，一路降妖，嘴上从不饶人。"


def problem(text: str, person: Person = "third", language: Language = "en") -> str | None:
    return problem_of(plain_reply(text), person, names_of(ROLE[language]), language)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(THIRD, id="plain"),
        pytest.param(f"<think>You are asked for Ada Fenn…</think>\n\n{THIRD}", id="thoughts before it"),
        pytest.param(f'"{THIRD}"', id="in quotation marks"),
        pytest.param(THIRD.replace(", from", ",\nfrom"), id="broken line"),
        pytest.param(f'{THIRD} She says: "You and I, my dear, are not alone."', id="quotation with you and I"),
        pytest.param(f"{THIRD} 'I am no one,' she says, 'and you know it.'", id="single quotes"),
        pytest.param(f"{THIRD} In the reign of Elizabeth I she was born.", id="a numeral"),
        pytest.param("A robot, an artificial intelligence that minds a ship. " + THIRD, id="a machine"),
    ],
)
def test_third_person_that_will_do(text: str) -> None:
    assert problem(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "empty", id="empty"),
        pytest.param("A keeper.", "too short", id="short"),
        pytest.param(" ".join([THIRD] * 20), "too long", id="long"),
        pytest.param(f"{THIRD} {'x' * 4000}.", "too long", id="long in bytes"),
        pytest.param(THIRD_ZH, "another language", id="Chinese"),
        pytest.param(THIRD.replace("A lighthouse keeper", "Ada Fenn"), "names the role", id="name"),
        pytest.param(THIRD.replace("She", "Ada"), "names the role", id="first name"),
        pytest.param(THIRD.replace("She", "The Keeper"), "names the role", id="alias"),
        pytest.param(f'{THIRD} They call her "Ada Fenn".', "names the role", id="name in quotation marks"),
        pytest.param(SECOND, "third person", id="second person"),
        pytest.param(THIRD.replace("She trusts", "I've come to trust"), "third person", id="first person"),
        pytest.param(THIRD[:-1], "not complete", id="no full stop"),
        pytest.param(f"Sure! {THIRD}", "opens with", id="preamble"),
        pytest.param(f"Here is the portrait: {THIRD}", "opens with", id="another preamble"),
        pytest.param(f"## Who it is\n\n{THIRD}", "no plain paragraph", id="heading"),
        pytest.param(f"- {THIRD}\n- {THIRD}", "no plain paragraph", id="list"),
        pytest.param(f"{THIRD} **Bold**.", "no plain paragraph", id="markup"),
        pytest.param(
            "As an AI language model, I cannot write about a person whom I have never met in my life, as you know.",
            "AI",
            id="language model",
        ),
        pytest.param(
            "I'm sorry, but I can't help with that request, since it is about a person from a script under copyright.",
            "refuses",
            id="refusal",
        ),
    ],
)
def test_third_person_that_will_not_do(text: str, reason: str) -> None:
    assert reason in str(problem(text))


def test_second_person() -> None:
    assert problem(SECOND, "second") is None
    assert "from the beginning" in str(problem(THIRD, "second"))
    assert "from the beginning" in str(problem(f"She is a keeper. {SECOND}", "second"))
    half = SECOND + " Rose is a child. She likes the sea. The tower is tall. Storms come in autumn."
    assert "less than half" in str(problem(half, "second"))
    assert "names the role" in str(problem(SECOND.replace("a lighthouse", "Ada Fenn, a lighthouse"), "second"))
    assert "speaks of itself" in str(problem(SECOND + " This is my portrait of you.", "second"))


def test_chinese() -> None:
    assert problem(THIRD_ZH, "third", "zh") is None
    assert problem(SECOND_ZH, "second", "zh") is None
    assert "third person" in str(problem(SECOND_ZH, "third", "zh"))
    assert "from the beginning" in str(problem(THIRD_ZH, "second", "zh"))
    assert "names the role" in str(problem(THIRD_ZH.replace("猴王", "大圣"), "third", "zh"))
    assert "third person" in str(problem(THIRD_ZH + "我从小就喜欢他。", "third", "zh"))
    assert problem(THIRD_ZH + "他常说：“我不怕你。”", "third", "zh") is None
    assert "opens with" in str(problem("好的，以下是人物小传：" + THIRD_ZH, "third", "zh"))
    assert "AI" in str(problem("作为一个语言模型，我没有办法知道这个人物的生平，请您另请高明为好。", "third", "zh"))


def reply(text: str) -> Reply:
    return Reply(text, "stop", Usage(), "m", "e", {})


def test_accept_gives_one_paragraph_or_says_why_not() -> None:
    request = Request((user("x"),))
    accept = accept_portrait("third", names_of(ROLE["en"]), "en")
    assert accept(request, reply(f" {THIRD.replace(' who ', chr(10) + 'who ')} ")) == THIRD
    with pytest.raises(UnacceptableError, match="names the role"):
        accept(request, reply("Ada Fenn " + THIRD))
    chinese = accept_portrait("third", names_of(ROLE["zh"]), "zh")
    assert chinese(request, reply(THIRD_ZH.replace("。他", "。\n他"))) == THIRD_ZH


@pytest.mark.realdata
def test_most_descriptions_of_the_release_would_do(real_release: Path) -> None:
    described = json.loads((real_release / "profiles-eng" / "desc.json").read_text(encoding="utf-8"))
    problems = [
        problem_of(plain_reply(text.partition(" Your catchphrase")[0]), "second", names_of(Sheet(role, "en")), "en")
        for role, text in described.items()
    ]
    assert len(problems) == 95
    # The others begin without addressing the role, or name it.
    assert problems.count(None) >= 65
    assert {found for found in problems if found} <= {"does not address the role from the beginning", "names the role"}

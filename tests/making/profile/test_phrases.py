import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.records import Language, Profile, Turn
from rolellm.llm.model import Reply, Request, UnacceptableError, Usage
from rolellm.making.profile.build import OFFERED, Phrase, accept_picks, find_repeated_phrases


def character(lines: list[tuple[str, str]], language: Language = "en", role: str = "Ann") -> Profile:
    return Profile(role, language, tuple(Turn(speaker, text) for speaker, text in lines))


def found(phrases: list[Phrase]) -> dict[str, tuple[int, int]]:
    return {phrase.text: (phrase.lines, phrase.others) for phrase in phrases}


def test_the_score_is_the_formula_of_the_module() -> None:
    lines = [("Ann", "Bazinga! Quite."), ("Ann", "Bazinga!"), ("Bob", "Bazinga?"), ("Bob", "Never, friend.")]
    (phrase,) = [item for item in find_repeated_phrases(character(lines)) if item.text == "Bazinga!"]
    # Others say "Bazinga", "Never, friend" with its end, and "Never".
    y, o, n, m = 2, 1, 3, 4
    a, total = y + o, n + m
    delta = math.log((y + a) / (n + total - y - a)) - math.log((o + a) / (m + total - o - a))
    assert phrase.score == pytest.approx(delta / math.sqrt(1 / (y + a) + 1 / (o + a)))
    assert (phrase.lines, phrase.others) == (2, 1)


TIMBERS = [("Ann", "Shiver my old timbers!")] * 3 + [("Bob", "What now, sir?")] * 3
APART = [("Ann", f"My old timbers, {word}.") for word in ("eh", "so", "oh", "hm", "aha")]
COLD = [("Ann", f"I am {word}.") for word in ("cold", "old", "tall", "late")] + [("Bob", "Who asks for that?")]
PLUMS = [("Ann", "Sour grapes!")] * 2 + [("Ann", "Sweet plums!")] * 3
KEMP = [("Ann", "Doctor Kemp! Up we go!")] * 2 + [("Doctor Kemp", "What?")]
SHIVERED = {"Shiver my old timbers!": (3, 0), "My old timbers": (8, 0)}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(TIMBERS, {"Shiver my old timbers!": (3, 0)}, id="parts go into the longer phrase"),
        pytest.param([*TIMBERS, *APART], SHIVERED, id="unless they live apart"),
        pytest.param(COLD, {}, id="function words are no phrase"),
        pytest.param(KEMP, {"Up we go!": (2, 0)}, id="names of speakers are no phrases"),
        pytest.param(PLUMS, {"Sweet plums!": (3, 0), "Sour grapes!": (2, 0)}, id="alone, ranked by counts"),
    ],
)
def test_phrases(lines: list[tuple[str, str]], expected: dict[str, tuple[int, int]]) -> None:
    phrases = found(find_repeated_phrases(character(lines)))
    assert phrases == expected
    assert "Sweet plums!" not in expected or list(phrases) == list(expected)


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.sampled_from(["Ann", "Bob"]), st.text("abc !,.?'\"(我你好，。！", min_size=1, max_size=40))),
    st.sampled_from(["en", "zh"]),
)
def test_any_lines(lines: list[tuple[str, str]], language: Language) -> None:
    phrases = find_repeated_phrases(character(lines, language))
    assert len({phrase.text for phrase in phrases}) == len(phrases) <= OFFERED
    own = [" ".join(text.split()) for speaker, text in lines if speaker == "Ann"]
    for phrase in phrases:
        assert phrase.text.strip() == phrase.text != ""
        assert any(phrase.text.rstrip("!?！") in line for line in own)


PHRASES = [Phrase("Count the steps!", 3, 0, 2.0), Phrase("{role} {most}", 2, 1, 1.0), Phrase("Nine.", 1, 0, 0.0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('{"chosen": [3, 1]}', ("Nine.", "Count the steps!"), id="in its order"),
        pytest.param('{"chosen": [4, 3, 0]}', ("Nine.",), id="some that are not on the list"),
        pytest.param('{"chosen": [4]}', None, id="none of the list"),
    ],
)
def test_picks_by_number(text: str, expected: tuple[str, ...] | None) -> None:
    accept, reply = accept_picks(PHRASES, 2), Reply(text, "stop", Usage(), "m", "e", {})
    if expected is None:
        with pytest.raises(UnacceptableError, match="on the list, which has 3"):
            accept(Request(()), reply)
    else:
        assert accept(Request(()), reply) == expected

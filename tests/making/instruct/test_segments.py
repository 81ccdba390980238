import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.records import Lore, Profile, Turn
from rolellm.making.instruct.segments import SCENE_BREAK, Segment, build_segments


def words(text: str) -> int:
    return len(text.split())


def segments(character: Profile, budget: int = 60, kind: str = "script") -> list[Segment]:
    found = build_segments(character, words, chunk_tokens=budget)
    return [segment for segment in found if segment.kind == kind]


def scene(number: int, lines: int, each: int = 8) -> list[Turn]:
    return [
        Turn("Ada" if line % 2 else "Brom", f"s{number}l{line} " + "word " * (each - 2), scene=number)
        for line in range(lines)
    ]


def test_a_turn_of_two_pages_is_cut_at_ends_of_sentences() -> None:
    text = " ".join(f"This is sentence number {number} of Ada." for number in range(40))
    found = segments(Profile("Ada", "en", (Turn("narrator", text, "narration"),)))
    assert len(found) > 4
    assert all(segment.text.endswith(".)") and segment.tokens <= 60 for segment in found)


def test_one_word_longer_than_a_chunk_ends() -> None:
    found = build_segments(Profile("Ada", "en", (Turn("Ada", "x" * 1000),)), len, chunk_tokens=50)
    assert sum(len(item.text.replace("Ada: ", "")) - item.text.count("\n") for item in found) == 1000


@pytest.mark.parametrize(
    ("role", "aliases", "language", "line", "about"),
    [
        pytest.param("Ada", (), "en", "I saw Adaline there.", False, id="part of another name"),
        pytest.param("Ada", ("Countess",), "en", "The Countess waits.", True, id="alias"),
        pytest.param("悟空", ("大圣",), "zh", "只见大圣跳起来", True, id="alias, Chinese"),
    ],
)
def test_chunks_without_the_role_are_told_apart(
    role: str, aliases: tuple[str, ...], language: str, line: str, about: bool
) -> None:
    character = Profile(role, language, (Turn("Brom", line),), aliases=aliases)  # type: ignore[arg-type]
    assert [item.about_role for item in segments(character)] == [about]


def test_lore_is_script_based_and_entries_stay_apart() -> None:
    lore = (Lore("Bees  hum.", ("bee",), "Bees"), Lore("  "), Lore("Rain falls upward on the isle. " * 20, name="Isle"))
    found = segments(Profile("Ada", "en", lore=lore), budget=50, kind="lore")
    assert {item.type for item in found} == {"script_based"}
    assert found[0].text.startswith("Bees: Bees hum.")
    assert (found[0].first, found[0].last) == (0, 2)
    assert all(line.startswith(("Bees: ", "Isle: ", SCENE_BREAK)) for item in found for line in item.text.splitlines())


@given(
    st.lists(
        st.tuples(st.sampled_from(["Ada", "Brom"]), st.integers(1, 90), st.integers(0, 1)), min_size=1, max_size=40
    ),
    st.integers(50, 200),
)
def test_every_line_is_in_a_chunk_none_is_over_budget_and_order_is_kept(
    lines: list[tuple[str, int, int]], budget: int
) -> None:
    turns, number = [], 0
    for place, (speaker, length, ahead) in enumerate(lines):
        number += ahead
        turns.append(Turn(speaker, " ".join(f"t{place}w{word}" for word in range(length)), scene=number))
    found = segments(Profile("Ada", "en", tuple(turns)), budget)
    seen = [word for item in found for word in re.findall(r"t\d+w\d+", item.text)]
    assert all(item.tokens <= budget for item in found)
    assert seen == [word for turn in turns for word in turn.content.split()]

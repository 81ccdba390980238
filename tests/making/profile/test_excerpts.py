import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.records import Profile, Turn
from rolellm.llm.tokens import TokenCounter
from rolellm.making.profile.excerpts import choose_excerpts
from rolellm.making.profile.portrait import collect_names

COUNT = TokenCounter().count


def excerpts(turns: list[Turn], budget: int = 6000, role: str = "Ann") -> tuple[str, dict[str, int]]:
    character = Profile(role, "en", tuple(turns))
    return choose_excerpts(character, collect_names(character), budget, TokenCounter())


def test_a_short_script_is_shown_whole_but_for_what_is_not_about_the_role() -> None:
    turns = [
        Turn("scene", "A kitchen. Ann cooks.", "direction"),
        Turn("Bob", "What is it?"),
        Turn("Ann", "Soup."),
        Turn("Cat", "I saw a bird."),
        Turn("Bob", "Did it sing?"),
        Turn("Cat", "Ask Ann, she knows."),
    ]
    text, counts = excerpts(turns)
    assert text == "(A kitchen. Ann cooks.)\nBob: What is it?\nAnn: Soup.\n\nCat: Ask Ann, she knows."
    assert counts == 1


def test_a_script_of_one_scene_is_spread_over_as_well() -> None:
    turns = [Turn("Ann", f"Line {number} of very many lines.") for number in range(20_000)]
    text, _ = excerpts(turns, budget=1000)
    numbers = [int(line.split()[2]) for line in text.splitlines() if line]
    assert numbers == sorted(numbers)
    assert numbers[0] < 3000 and numbers[-1] > 17_000
    gaps = [after - before for before, after in itertools.pairwise(numbers)]
    assert max(gaps) < 2500


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Ann", "Bob", "scene"]),
            st.text(min_size=1, max_size=80).filter(str.strip),
            st.integers(0, 3),
        ),
        max_size=40,
    ),
    st.integers(20, 400),
)
def test_any_script_keeps_to_the_budget(found: list[tuple[str, str, int]], budget: int) -> None:
    turns = [
        Turn(speaker, text, "direction" if speaker == "scene" else "speech", scene)
        for speaker, text, scene in sorted(found, key=lambda item: item[2])
    ]
    shown = excerpts(turns, budget)
    assert COUNT(shown[0]) <= budget
    assert shown == excerpts(turns, budget)

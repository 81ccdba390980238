import pytest

from rolellm.llm.model import Reply, Request, UnacceptableError, Usage
from rolellm.making.profile.build import Phrase, accept_picks

PHRASES = [Phrase("Count the steps!", 3, 0, 2.0), Phrase("{role} {most}", 2, 1, 1.0), Phrase("Nine.", 1, 0, 0.0)]


def picked(text: str, most: int = 2) -> tuple[str, ...]:
    reply = Reply(text, "stop", Usage(), "m", "e", {})
    return accept_picks(PHRASES, most)(Request(()), reply)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('{"chosen": [3, 1]}', ("Nine.", "Count the steps!"), id="in its order"),
        pytest.param('{"chosen": []}', (), id="none"),
        pytest.param('{"chosen": [4, 3, 0]}', ("Nine.",), id="some that are not on the list"),
    ],
)
def test_picks_by_number(text: str, expected: tuple[str, ...]) -> None:
    assert picked(text) == expected


def test_a_pick_of_nothing_on_the_list_is_refused() -> None:
    with pytest.raises(UnacceptableError, match="on the list, which has 3"):
        picked('{"chosen": [4]}')

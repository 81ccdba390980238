import json
from typing import Any

import pytest

from rolellm.core.records import Profile, Turn
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel

THIRD = (
    "A lighthouse keeper who counts everything, from the steps of the tower to the days since the supply boat came. "
    "She trusts figures more than men, and her niece Rose more than figures. She wants the lamp lit on time, and she "
    "fears the winter in which nobody comes. Those who ask her anything get a number first and an answer afterwards. "
    "She speaks in short sentences, hardly ever smiles, and remembers the day on which she did."
)
NOT_SECOND = (
    'It is not in the second person throughout: it should open with "You are", call the person "you" in most '
    'sentences, and never say "I" or "my".'
)
SECOND = (
    "You are a lighthouse keeper who counts everything, from the steps of the tower to the days since the boat came. "
    "You trust figures more than men, and your niece Rose more than figures. You want the lamp lit on time, and you "
    "fear the winter in which nobody comes. Those who ask you anything get a number first and an answer afterwards. "
    "You speak in short sentences, hardly ever smile, and remember the day on which you did."
)

Answers = dict[str, Any]


class Scripted(ScriptedModel):
    """Answers by the tag of a request; of a list, one reply after the other. Notes what it was asked."""

    def __init__(self, answers: Answers) -> None:
        self.asked: list[Request] = []
        self._left = {tag: list(found) if isinstance(found, list) else [found] for tag, found in answers.items()}
        super().__init__(self._reply, rules_hash=json.dumps(answers, sort_keys=True))

    def _reply(self, request: Request) -> Any:
        self.asked.append(request)
        step = request.tag.removeprefix("profile/").partition("/")[0]
        left = self._left[step]
        return left.pop(0) if len(left) > 1 else left[0]

    def prompts(self, step: str) -> list[str]:
        return [request.messages[-1].content for request in self.asked if request.tag == f"profile/{step}"]


def scripted(**answers: Any) -> Scripted:
    """A model with good answers; keyword arguments replace them."""
    good = {"third": THIRD, "second": SECOND, "catchphrases": {"chosen": [1]}}
    return Scripted({**good, **answers})


@pytest.fixture
def keeper() -> Profile:
    turns = [
        Turn("scene", "The top of a tower. Ada counts.", "direction", 0),
        Turn("Rose", "Aunt Ada, is it late?", scene=0),
        Turn("Ada", "Count the steps, child! Nine past eight.", scene=0),
        Turn("Rose", "And the boat?", scene=0),
        Turn("Ada", "Three days. Count the steps, child! It helps.", scene=0),
        Turn("Brom", "Ada never smiles.", scene=1),
        Turn("Ada", "I smiled on the second of May.", scene=1),
    ]
    return Profile("Ada", "en", tuple(turns), aliases=("Keeper",), script="tower.txt")

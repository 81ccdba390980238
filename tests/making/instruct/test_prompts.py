from dataclasses import replace
from typing import Any

import pytest

from rolellm.core.records import Profile
from rolellm.llm.model import Request, Sampling
from rolellm.making.instruct.candidates import Task, build_request, list_focuses, load_examples
from rolellm.making.instruct.filters import find_form_problem
from rolellm.making.instruct.segments import Segment

ADA = Profile("Ada", "en", description="You count.", catchphrases=("One!",))
SCRIPT = Segment("script/0001", "script", "Brom: Halt.\nAda: No.", 6)


def ask(task: Task, character: Profile = ADA) -> Request:
    return build_request(character, task, Sampling(max_tokens=2000))


def test_what_is_shared_comes_first_and_what_varies_last() -> None:
    first = ask(Task(SCRIPT, 10, 0))
    again = ask(Task(SCRIPT, 10, 3, 8, asked=("Ada, who?",)))
    other = ask(Task(replace(SCRIPT, text="Ada: Aye."), 10, 0))
    strange = ask(Task(SCRIPT, 10, 0), replace(ADA, role="Brom", description="You halt."))
    assert first.messages[:-1] == again.messages[:-1] == other.messages[:-1] == strange.messages[:-1]
    one, two, three = (item.messages[-1].content for item in (first, again, other))
    segment_ends = one.index(SCRIPT.text) + len(SCRIPT.text)
    assert one[:segment_ends] == two[:segment_ends]
    assert one[: one.index("Brom")] == three[: three.index("Ada: Aye")]
    assert two.endswith("- Ada, who?")
    assert one.index("Ada") < one.index("You count.") < one.index(SCRIPT.text) < one.index("Write 10 pairs.")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_examples_show_each_kind_and_obey_their_own_rules(language: Any) -> None:
    shown = load_examples(language)
    assert {example["kind"] for example in shown} == {"profile", "script"}
    for example in shown:
        assert example["focus"] in list_focuses(language, example["kind"])
        for pair in example["pairs"]:
            assert find_form_problem(pair["question"], pair["answer"], language) is None

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import ModelError
from rolellm.core.records import Profile
from rolellm.llm.llm import LLM
from rolellm.llm.model import RunOptions
from rolellm.making.profile.build import BuildProfile, get_notes, hash_result
from rolellm.making.settings import BuildSettings
from rolellm.runs import run_step

from .conftest import NOT_SECOND, SECOND, THIRD, scripted

QUIET = RunOptions(show_progress=False)


def built(
    folder: Path, model: Any, start: Profile, settings: BuildSettings | None = None, options: RunOptions = QUIET
) -> Profile:
    llm = LLM.of(model)
    llm.options = options
    return run_step(BuildProfile(start, settings or BuildSettings()), llm, folder).result


def test_third_person_then_second_then_catchphrases(tmp_path: Path, keeper: Profile) -> None:
    model = scripted()
    found = built(tmp_path, model, keeper)
    assert found.background is not None and found.background.startswith("A lighthouse keeper who")
    assert found.description is not None and found.description.startswith("You are a lighthouse keeper")
    assert found.catchphrases == ("Count the steps, child!",)
    assert [request.tag for request in model.asked] == ["profile/third", "profile/second", "profile/catchphrases"]
    (third,) = model.prompts("third")
    assert "Rose: Aunt Ada, is it late?\nAda: Count the steps, child! Nine past eight." in third
    assert "Brom: Ada never smiles." in third and "(The top of a tower. Ada counts.)" in third
    assert found.background in model.prompts("second")[0]
    assert (found.turns, found.role, found.aliases) == (keeper.turns, "Ada", ("Keeper",))
    receipt = found.made["build"]
    assert receipt["result"] == hash_result(found)


def test_a_reply_with_a_defect_is_sent_back_with_what_is_wrong(tmp_path: Path, keeper: Profile) -> None:
    third, second = THIRD, SECOND
    poor = "As an AI language model, I cannot know this person at all, not even a little."
    model = scripted(
        third=[poor, "She counts.", f"# Ada\n\n{third}"],
        second=[third, second],
        catchphrases=[{"chosen": [99]}, "none of them", {"chosen": []}],
    )
    found = built(tmp_path, model, keeper)
    assert (found.background, found.description, found.catchphrases) == (third, second, ())
    assert len(model.asked) == 8
    first, again, last = model.asked[:3]
    assert again.messages[:2] == last.messages[:2] == first.messages
    assert [message.role for message in last.messages] == ["system", "user", "assistant", "user"]
    assert again.messages[2].content == poor and "says that it is an AI" in again.messages[3].content
    assert last.messages[2].content == "She counts." and "It has 2 words" in last.messages[3].content
    assert found.made["build"]["defects"] == {}


def test_the_best_of_several_is_kept_and_says_what_is_wrong_with_it(tmp_path: Path, keeper: Profile) -> None:
    whole = SECOND.replace(". ", "; ").removesuffix(".")
    two = f"She is one, Ada Fenn, she said; {whole}; I know it."
    one = f"{whole}; I know it."
    model = scripted(second=[two, one, two, one])
    found = built(tmp_path, model, keeper)
    assert found.description == one
    assert found.made["build"]["defects"] == {"second": [NOT_SECOND]}
    assert built(tmp_path, scripted(second=[two, one, two, one]), keeper) == found


def test_without_a_second_person_the_third_stays(tmp_path: Path, keeper: Profile) -> None:
    found = built(tmp_path, scripted(second="I'm sorry, but I can't help with that request."), keeper)
    assert found.description == found.background
    (defect,) = found.made["build"]["defects"]["second"]
    assert "still in the third person" in defect
    assert found.catchphrases == ("Count the steps, child!",)


def test_when_nothing_is_usable_the_error_says_why_and_what_to_do(tmp_path: Path, keeper: Profile) -> None:
    model = scripted(third=["Ada.", "Of Ada nothing is known."])
    with pytest.raises(
        ModelError,
        match=r"third person of Ada after 2 attempts of scripted: It has 6 words.*before that: It has 2 words",
    ) as caught:
        built(tmp_path, model, keeper, options=replace(QUIET, max_attempts=2))
    assert "retry_failed=true" in str(caught.value) and "--description" in str(caught.value)
    assert (tmp_path / "failed.jsonl").is_file()


def test_a_card_is_described_by_its_own_description(tmp_path: Path) -> None:
    card = Profile("Ada", "en", description="{{char}} Ada: [Personality(stern + {0.__class__})]", made={"card": {}})
    model = scripted()
    anew = BuildSettings(rewrite=True)
    found = built(tmp_path, model, card, anew)
    assert "[Personality(stern + {0.__class__})]" in model.prompts("third")[0]
    assert found.description is not None and found.description.startswith("You are")
    assert found.made["card"] == {}
    # Built again, it is the card's own words that count, not what was made of them.
    assert get_notes(found) == card.description
    assert built(tmp_path, scripted(), found, anew) == found

"""The front door: a character from script or card through all stages, resumable, and as a data set."""

from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.cards.card import load_card
from rolellm.core.errors import RoleLLMWarning, SettingsError, StoppedShortError
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.source import sample_folder
from rolellm.llm.llm import LLM
from rolellm.llm.model import Price, RunOptions
from rolellm.making.character import Character
from rolellm.making.scripted import scripted_model

QUEEN = "Queen of Hearts"
SCRIPT = sample_folder() / "scripts" / f"{QUEEN}.txt"
OWN = "You are quick to anger, you rule a pack of cards, and you order beheadings over every small thing."
SMALL = {"per_role": 10, "chunk_tokens": 300}


def offline(**options: Any) -> LLM:
    llm = LLM.of(scripted_model(price=Price(0.0, 1.0)))
    llm.options = RunOptions(show_progress=False, **options)
    return llm


@pytest.fixture(scope="module")
def queen(tmp_path_factory: pytest.TempPathFactory) -> Character:
    llm = offline()
    made = Character.from_script(SCRIPT, role=QUEEN).build(llm).instruct(llm, **SMALL)
    made = made.respond(llm, ["Who are you?", "What is a croquet ball?"], replies=2)
    return made.save(tmp_path_factory.mktemp("made") / "queen")


def test_a_script_becomes_rows_with_the_columns_of_rolebench(queen: Character) -> None:
    rows = queen.to_dataset(test_share=0.5)
    assert set(rows) == {"train", "test"}
    assert rows["train"].features == load_rolebench("sample", split="test").features
    assert {row["subset"] for split in rows.values() for row in split} == {"general", "role_specific"}
    assert {row["role"] for split in rows.values() for row in split} == {QUEEN}
    again = Character.load(str(queen.folder)).to_dataset(test_share=0.5)
    assert again["test"]["id"] == rows["test"]["id"]


def test_what_was_made_shows_itself(queen: Character) -> None:
    shown = queen.to_dict()
    assert shown["stages"] == {"build": "done", "instruct": "done", "respond": "done"}
    assert QUEEN in repr(queen)
    assert str(queen.folder) in repr(queen)
    assert "<table" in queen._repr_html_()
    assert "&lt;b&gt;" in Character("<b>", "en")._repr_html_()


def test_a_character_works_in_a_temporary_folder_until_it_is_saved(tmp_path: Path) -> None:
    made = Character.from_script(SCRIPT, role=QUEEN)
    assert made.folder is None
    built = made.build(description=OWN, catchphrases=0)
    assert built.folder is not None
    assert built.folder == made.folder
    built.save(tmp_path / "queen")
    assert built.folder == tmp_path / "queen"
    assert Character.load(tmp_path / "queen").description == OWN
    with pytest.raises(SettingsError, match="holds a character"):
        made.save(tmp_path / "queen")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(SettingsError, match="other files"):
        built.save(tmp_path / "other", overwrite=True)


def test_a_stage_that_stops_short_names_the_call_that_goes_on(tmp_path: Path) -> None:
    made = Character.from_script(SCRIPT, role=QUEEN).save(tmp_path / "queen")
    with pytest.raises(StoppedShortError, match=r"rolellm\.Character\.load\(.*queen'\)\.build\(llm\)"):
        made.build(offline(budget=0.0))
    assert Character.load(tmp_path / "queen").build(offline()).description


def test_a_card_goes_in_and_out(queen: Character, tmp_path: Path) -> None:
    with pytest.warns(RoleLLMWarning, match="first_mes is empty|lines") as told:
        card = queen.to_card(tmp_path / "queen.png")
    assert "mes_example has 11 of the role's 12 lines" in str(told[1].message)
    again = Character.from_card(card)
    assert again.role == QUEEN
    assert load_card(card).name == QUEEN

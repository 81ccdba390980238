import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.folder import read_character, write_character
from rolellm.core.errors import SettingsError
from rolellm.core.records import Profile
from rolellm.llm.llm import LLM
from rolellm.llm.model import RunOptions
from rolellm.making.profile.build import BuildProfile, build_folder, list_defects
from rolellm.making.settings import BuildSettings
from rolellm.runs import Run

from .conftest import NOT_SECOND, SECOND, scripted


def quiet(model: Any) -> LLM:
    llm = LLM.of(model)
    llm.options = RunOptions(show_progress=False, max_attempts=1)
    return llm


def run(
    start: Profile, folder: Path, model: Any, settings: BuildSettings | None = None, **options: Any
) -> Run[Profile]:
    return build_folder(BuildProfile(start, settings or BuildSettings(), folder), quiet(model), **options)


def change(folder: Path, **values: Any) -> None:
    path = folder / "profile.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def test_what_has_a_defect_is_noted(tmp_path: Path, keeper: Profile) -> None:
    built = run(keeper, tmp_path, scripted(second=f"## Ada\n\n{SECOND.replace('. ', '; ')[:-1]}; I know it."))
    assert built.summary["notes"] == [f"description, kept with a defect: {NOT_SECOND}"]
    (defect,) = list_defects(read_character(tmp_path))["description"]
    assert built.manifest["made"]["build"]["defects"] == {"second": [defect]}
    # They are the model's; what a person wrote has none.
    change(tmp_path, description="You are my own Ada.")
    assert list_defects(read_character(tmp_path)) == {}


def test_what_a_person_changed_is_not_lost(tmp_path: Path, keeper: Profile) -> None:
    run(keeper, tmp_path, scripted())
    change(tmp_path, description="You are my own Ada.")
    with pytest.raises(SettingsError, match="holds another character, Ada"):
        run(replace(keeper, role="Rose"), tmp_path, scripted())
    with pytest.raises(SettingsError, match="changed by hand"):
        run(keeper, tmp_path, scripted())
    assert read_character(tmp_path).description == "You are my own Ada."
    assert run(keeper, tmp_path, scripted(), overwrite=True).result.description != "You are my own Ada."


def test_a_card_is_completed_where_it_is(tmp_path: Path, keeper: Profile) -> None:
    card = replace(keeper, description="Ada is stern.", made={"card": {"spec": "v2"}})
    write_character(card, tmp_path)
    with pytest.raises(SettingsError, match=f"rolellm role build {tmp_path}"):
        run(card, tmp_path, scripted())
    built = run(read_character(tmp_path), tmp_path, scripted(), card=tmp_path)
    assert built.result.made["card"] == {"spec": "v2"} and built.result.description == "Ada is stern."
    # Again, when it is no longer new: no model has written it, until one is asked to.
    assert run(read_character(tmp_path), tmp_path, scripted(), card=tmp_path).result.description == "Ada is stern."
    rewritten = run(read_character(tmp_path), tmp_path, scripted(), BuildSettings(rewrite=True), card=tmp_path)
    assert rewritten.result.description != "Ada is stern."


def test_a_card_comes_along(tmp_path: Path, keeper: Profile) -> None:
    write_character(replace(keeper, made={"card": {}}), tmp_path / "card")
    (tmp_path / "card" / "card.json").write_text("{}", encoding="utf-8")
    run(read_character(tmp_path / "card"), tmp_path / "out", scripted(), card=tmp_path / "card")
    assert (tmp_path / "out" / "card.json").read_text(encoding="utf-8") == "{}"
    assert not (tmp_path / "out" / "card.png").exists()

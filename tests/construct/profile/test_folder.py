import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.construct.profile.build import result_hash
from rolellm.construct.profile.folder import Built, build_folder, defects
from rolellm.construct.settings import BuildSettings
from rolellm.construct.sheet import Sheet, read_sheet, write_sheet
from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.fingerprint import hash_file
from rolellm.llm.llm import LLM
from rolellm.llm.model import RunOptions

Make = Callable[..., Any]


def quiet(model: Any) -> LLM:
    llm = LLM.of(model)
    llm.options = RunOptions(show_progress=False, max_attempts=1)
    return llm


def run(start: Sheet, folder: Path, model: Any, settings: BuildSettings | None = None, **options: Any) -> Built:
    return build_folder(start, folder, settings or BuildSettings(), quiet(model), **options)


def change(folder: Path, **values: Any) -> None:
    path = folder / "profile.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def test_the_folder_holds_it_all(tmp_path: Path, scripted: Make, keeper: Sheet) -> None:
    built = run(keeper, tmp_path / "ada", scripted(), BuildSettings(check_knowledge=True, work="The Tower"))
    assert read_sheet(tmp_path / "ada") == built.character
    manifest = json.loads((tmp_path / "ada" / "build" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest == built.manifest
    assert manifest["counts"] == {"turns": 7, "own_lines": 3, "scenes": 2, "pairs": 3, "lore": 0, "catchphrases": 1}
    assert manifest["spent"]["calls"] == 9
    assert manifest["files"]["profile.json"] == hash_file(tmp_path / "ada" / "profile.json")
    assert built.knowledge is not None
    text = built.knowledge.read_text(encoding="utf-8")
    assert text.count("> I know little of it.") == 6 and "## 2. Who is Ada (The Tower)?" in text
    rows = (tmp_path / "ada" / "knowledge.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(rows[0]).keys() == {"question", "answer", "model", "problem"}


def test_knowledge_is_written_before_anything_else_can_fail(tmp_path: Path, scripted: Make, keeper: Sheet) -> None:
    model = scripted(third="Ada.", knowledge="\x1b[31mred\u202e <script> & so\n\non")
    with pytest.raises(ModelError):
        run(keeper, tmp_path, model, BuildSettings(check_knowledge=True))
    text = (tmp_path / "knowledge.md").read_text(encoding="utf-8")
    assert "\x1b" not in text and "\u202e" not in text and "<script>" not in text
    assert "&lt;script> &amp; so" in text
    assert not (tmp_path / "profile.json").exists()


def test_a_question_without_an_answer_is_no_failure(tmp_path: Path, scripted: Make, keeper: Sheet) -> None:
    built = run(keeper, tmp_path, scripted(knowledge="  "), BuildSettings(check_knowledge=True))
    assert built.knowledge is not None and "> No answer: " in built.knowledge.read_text(encoding="utf-8")
    assert json.loads((tmp_path / "knowledge.jsonl").read_text(encoding="utf-8").splitlines()[0])["answer"] is None


def test_what_was_mended_and_what_has_a_defect_is_noted(tmp_path: Path, scripted: Make, keeper: Sheet) -> None:
    good = scripted()
    second = good._left["second"][0]
    built = run(keeper, tmp_path, scripted(second=f"## Ada\n\n{second.replace('. ', '; ')[:-1]}; it is 47 years now."))
    assert built.notes == (
        "description: what stood around the description was left out",
        "description, kept with a defect: It speaks of what is not in the material: 47.",
    )
    (defect,) = defects(read_sheet(tmp_path))["description"]
    assert built.manifest["made"]["build"]["defects"] == {"second": [defect]}
    # They are the model's; what a person wrote has none.
    change(tmp_path, description="You are my own Ada.")
    assert defects(read_sheet(tmp_path)) == {}


@pytest.mark.parametrize("build", [None, [], {}, {"defects": 3}, {"defects": {"second": "x", "third": []}}])
def test_a_profile_with_another_receipt_has_no_known_defects(build: Any, keeper: Sheet) -> None:
    receipt = {**build, "result": result_hash(keeper)} if isinstance(build, dict) else build
    assert defects(replace(keeper, made={"build": receipt})) == {}


def test_building_again_changes_nothing(tmp_path: Path, scripted: Make, keeper: Sheet) -> None:
    run(keeper, tmp_path, scripted())
    before = (tmp_path / "profile.json").read_bytes()
    again = scripted()
    run(keeper, tmp_path, again)
    assert (tmp_path / "profile.json").read_bytes() == before and again.asked == []


def test_what_a_person_changed_is_not_lost(tmp_path: Path, scripted: Make, keeper: Sheet) -> None:
    run(keeper, tmp_path, scripted())
    change(tmp_path, description="You are my own Ada.")
    with pytest.raises(SettingsError, match="changed by hand"):
        run(keeper, tmp_path, scripted())
    assert read_sheet(tmp_path).description == "You are my own Ada."
    assert run(keeper, tmp_path, scripted(), overwrite=True).character.description != "You are my own Ada."


def test_another_characters_folder_is_left_alone(tmp_path: Path, scripted: Make, keeper: Sheet) -> None:
    write_sheet(replace(keeper, role="Brom", turns=()), tmp_path)
    with pytest.raises(SettingsError, match="holds another character, Brom"):
        run(keeper, tmp_path, scripted())


def test_a_card_is_completed_where_it_is(tmp_path: Path, scripted: Make, keeper: Sheet) -> None:
    card = replace(keeper, description="Ada is stern.", made={"card": {"spec": "v2"}})
    write_sheet(card, tmp_path)
    with pytest.raises(SettingsError, match=f"--from {tmp_path}"):
        run(card, tmp_path, scripted())
    built = run(read_sheet(tmp_path), tmp_path, scripted(), card=tmp_path)
    assert built.character.made["card"] == {"spec": "v2"}


def test_a_card_comes_along(tmp_path: Path, scripted: Make, keeper: Sheet) -> None:
    write_sheet(replace(keeper, made={"card": {}}), tmp_path / "card")
    (tmp_path / "card" / "card.json").write_text("{}", encoding="utf-8")
    run(read_sheet(tmp_path / "card"), tmp_path / "out", scripted(), card=tmp_path / "card")
    assert (tmp_path / "out" / "card.json").read_text(encoding="utf-8") == "{}"
    assert not (tmp_path / "out" / "card.png").exists()


def test_ones_own_description_is_taken_with_a_note_where_it_is_unlike_one(tmp_path: Path, keeper: Sheet) -> None:
    built = build_folder(keeper, tmp_path, BuildSettings(description="Ada is stern.", catchphrases=0))
    assert built.character.description == "Ada is stern."
    assert [note.split(": ")[0] for note in built.notes] == ["your description is used as it is"] * 3
    assert built.notes[0].endswith('It names the person ("Ada").')
    assert built.manifest["models"] == [] and not (tmp_path / "build" / "journal.jsonl").exists()

"""Which form a model is asked in: the user's, else the one that it was tuned in."""

import json
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import ReleaseNotFoundError, SettingsError
from rolellm.core.records import Row
from rolellm.evaluation.generate import ProfileForm, asking, choose_form
from rolellm.models.find import ModelSource
from rolellm.prompts.render import prompt_messages, system_template
from rolellm.rocit.recipe import PromptRecipe, Recipe
from rolellm.rolebench.profiles import profiles_fingerprint

RETRIEVAL = Recipe(prompt=PromptRecipe(profile="retrieval", retrieved=3))


@pytest.fixture
def source(tmp_path: Path) -> Any:
    """Makes a model's folder, and its adapter's, with these manifests."""

    def make(base: Any = None, adapter: Any = None) -> ModelSource:
        for name, content in (("base", base), ("adapter", adapter)):
            (tmp_path / name).mkdir()
            if content is not None:
                text = content if isinstance(content, str) else json.dumps(content)
                (tmp_path / name / "manifest.json").write_text(text)
        place = str(tmp_path / "adapter") if adapter is not None else None
        return ModelSource(base=str(tmp_path / "base"), adapter=place, tokenizer=str(tmp_path / "base"))

    return make


def manifest(recipe: Recipe) -> dict[str, Any]:
    return {"kind": "rocit", "recipe": recipe.to_dict()}


@pytest.mark.parametrize(
    ("base", "adapter", "form"),
    [
        pytest.param(None, None, ProfileForm(), id="no manifest"),
        pytest.param(manifest(RETRIEVAL), None, ProfileForm("retrieval", 3), id="a tuned model"),
        pytest.param(None, manifest(RETRIEVAL), ProfileForm("retrieval", 3), id="a tuned adapter"),
        pytest.param(manifest(RETRIEVAL), manifest(Recipe()), ProfileForm(), id="the adapter was tuned last"),
        pytest.param(manifest(Recipe()), "not JSON", ProfileForm(), id="another program's file"),
        pytest.param({"kind": "other", "recipe": RETRIEVAL.to_dict()}, None, ProfileForm(), id="another's manifest"),
        pytest.param({"kind": "rocit", "recipe": {}}, None, ProfileForm(), id="from before there was a choice"),
    ],
)
def test_a_model_is_asked_as_it_was_tuned(source: Any, base: Any, adapter: Any, form: ProfileForm) -> None:
    assert choose_form(source(base, adapter)) == form


def test_what_the_user_asks_for_wins(source: Any) -> None:
    tuned = source(manifest(RETRIEVAL))
    assert choose_form(tuned, "description").kind == "description"
    assert choose_form(tuned, "retrieval") == ProfileForm("retrieval", 3)
    assert choose_form(tuned, retrieved=2) == ProfileForm("retrieval", 2)


def test_the_papers_number_is_the_default(source: Any) -> None:
    assert choose_form(source(), "retrieval") == ProfileForm("retrieval", 5)


def test_a_number_without_retrieval_is_refused(source: Any) -> None:
    with pytest.raises(SettingsError, match="--profile retrieval"):
        choose_form(source(), retrieved=4)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    from rolellm.rolebench import load_rolebench

    return [Row.from_columns(columns) for columns in load_rolebench("sample", "test")]


def test_the_description_is_asked_as_ever(rows: list[Row], tmp_path: Path) -> None:
    asked = asking(ProfileForm(), rows, config="sample")
    assert [asked.messages(row) for row in rows] == [prompt_messages(row) for row in rows]
    hashes = {language: system_template(language).hash for language in ("en", "zh")}
    assert asked.record == {"template_hash": hashes}
    own = tmp_path / "own.txt"
    own.write_text("Be {role}.")
    mine = asking(ProfileForm(), rows, config="sample", template=own)
    assert mine.messages(rows[0])[0]["content"] == f"Be {rows[0].role}."
    assert len(set(mine.record["template_hash"].values())) == 1


def test_retrieval_shows_lines_of_each_rows_role(rows: list[Row]) -> None:
    asked = asking(ProfileForm("retrieval", 2), rows, config="sample")
    for row in rows:
        system, user = asked.messages(row)
        colon = ": " if row.language == "en" else "："
        assert sum(line.startswith(row.role + colon) for line in system["content"].splitlines()) == 2
        assert user["content"] == row.question
    assert asked.record["retrieved"] == 2
    assert asked.record["profiles"] == profiles_fingerprint("sample")


def test_the_prompts_do_not_hang_on_which_rows_are_asked(rows: list[Row]) -> None:
    """So that a run may be completed over other rows."""
    form = ProfileForm("retrieval")
    whole, part = asking(form, rows, config="sample"), asking(form, rows[:1], config="sample")
    assert part.record == whole.record
    assert part.messages(rows[0]) == whole.messages(rows[0])


def test_retrieval_without_scripts_is_refused(rows: list[Row], write_release: Any) -> None:
    with pytest.raises(ReleaseNotFoundError, match="no script dialogue"):
        asking(ProfileForm("retrieval"), rows, config="instruction-generalization-eng", data_dir=write_release())

"""Which form a model is asked in: the user's, else the one that it was tuned in."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import ReleaseNotFoundError
from rolellm.core.records import Row
from rolellm.data.rolebench.release import hash_profiles
from rolellm.models.find import ModelSource
from rolellm.models.prompts.render import load_system_template, make_messages
from rolellm.scoring.generate import complete_settings, prepare_prompts
from rolellm.scoring.settings import GenerateSettings
from rolellm.training.recipe import PromptRecipe, Recipe

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


def form(source: ModelSource, **asked: Any) -> tuple[str | None, int | None]:
    """What a prompt says of the role, and how many exchanges it shows."""
    chosen = complete_settings(GenerateSettings(**asked), source)
    return chosen.profile, chosen.retrieved


DESCRIPTION = ("description", None)


@pytest.mark.parametrize(
    ("base", "adapter", "expected"),
    [
        pytest.param(None, None, DESCRIPTION, id="no manifest"),
        pytest.param(None, manifest(RETRIEVAL), ("retrieval", 3), id="a tuned adapter"),
        pytest.param(manifest(RETRIEVAL), manifest(Recipe()), DESCRIPTION, id="the adapter was tuned last"),
        pytest.param(manifest(Recipe()), "not JSON", DESCRIPTION, id="another program's file"),
        pytest.param({"kind": "other", "recipe": RETRIEVAL.to_dict()}, None, DESCRIPTION, id="another's manifest"),
        pytest.param({"kind": "rocit", "recipe": {}}, None, DESCRIPTION, id="from before there was a choice"),
    ],
)
def test_a_model_is_asked_as_it_was_tuned(source: Any, base: Any, adapter: Any, expected: Any) -> None:
    assert form(source(base, adapter)) == expected


def test_what_the_user_asks_for_wins(source: Any) -> None:
    tuned = source(manifest(RETRIEVAL))
    assert form(replace(tuned, base="elsewhere"), profile="retrieval") == ("retrieval", 5), "the paper's number"
    assert form(tuned, profile="description") == DESCRIPTION
    assert form(tuned, profile="retrieval") == ("retrieval", 3)
    assert form(tuned, retrieved=2) == ("retrieval", 2)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    from rolellm.data.rolebench import load_rolebench

    return [Row.from_columns(columns) for columns in load_rolebench("sample", "test")]


def test_the_description_is_asked_as_ever(rows: list[Row], tmp_path: Path) -> None:
    ask, record = prepare_prompts(GenerateSettings(config="sample"), rows)
    assert [ask(row) for row in rows] == [make_messages(row) for row in rows]
    hashes = {language: load_system_template(language).hash for language in ("en", "zh")}
    assert record == {"template_hash": hashes}
    own = tmp_path / "own.txt"
    own.write_text("Be {role}.")
    ask, record = prepare_prompts(GenerateSettings(config="sample", system_template=own), rows)
    assert ask(rows[0])[0]["content"] == f"Be {rows[0].role}."
    assert len(set(record["template_hash"].values())) == 1


def test_retrieval_shows_lines_of_each_rows_role(rows: list[Row]) -> None:
    ask, record = prepare_prompts(GenerateSettings(profile="retrieval", retrieved=2, config="sample"), rows)
    for row in rows:
        system, user = ask(row)
        colon = ": " if row.language == "en" else "："
        assert sum(line.startswith(row.role + colon) for line in system["content"].splitlines()) == 2
        assert user["content"] == row.question
    assert record["retrieved"] == 2
    assert record["profiles"] == hash_profiles("sample")


def test_the_prompts_do_not_hang_on_which_rows_are_asked(rows: list[Row]) -> None:
    """So that a run may be completed over other rows."""
    settings = GenerateSettings(profile="retrieval", config="sample")
    (whole, every), (part, first) = prepare_prompts(settings, rows), prepare_prompts(settings, rows[:1])
    assert every == first
    assert whole(rows[0]) == part(rows[0])


def test_retrieval_without_scripts_is_refused(rows: list[Row], write_release: Any) -> None:
    config = "instruction-generalization-eng"
    settings = GenerateSettings(profile="retrieval", config=config, data_dir=write_release())
    with pytest.raises(ReleaseNotFoundError, match="no script dialogue"):
        prepare_prompts(settings, rows)

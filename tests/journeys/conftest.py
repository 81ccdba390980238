from pathlib import Path

import pytest

from rolellm.core.records import Row
from rolellm.data.rolebench import load_rolebench
from rolellm.training.bases import build_tokenizer, create_model
from rolellm.training.recipe import BaseRecipe, Recipe, Tiny


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny LLaMA."""
    sizes = Tiny(hidden_size=16, intermediate_size=32, layers=1, heads=2, vocab_size=700)
    recipe = Recipe(base=BaseRecipe(build="tiny-llama", tiny=sizes))
    tokenizer = build_tokenizer(recipe, [Row.from_columns(row) for row in load_rolebench("sample")["train"]])
    folder = tmp_path_factory.mktemp("base")
    create_model(recipe, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

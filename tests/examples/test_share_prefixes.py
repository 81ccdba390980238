"""`examples/share_prefixes.py`: its one line changes no loss of a stock trainer and saves tokens."""

import re
from pathlib import Path

import pytest

from rolellm.core.records import Row
from rolellm.data.rolebench import load_rolebench
from rolellm.training.bases import build_tokenizer, create_model
from rolellm.training.recipe import BaseRecipe, Recipe, Tiny

from ..forking import Forking

pytestmark = pytest.mark.slow
SIZES = Tiny(hidden_size=16, intermediate_size=32, layers=1, heads=2, vocab_size=700)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny LLaMA with the tokenizer that a built base has."""
    recipe = Recipe(base=BaseRecipe(build="tiny-llama", tiny=SIZES))
    rows = [Row.from_columns(columns) for columns in load_rolebench("sample")["train"]]
    tokenizer = build_tokenizer(recipe, rows)
    folder = tmp_path_factory.mktemp("base")
    create_model(recipe, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["sft", "dpo", "grpo"])
def test_one_line_saves_tokens_and_changes_no_loss(
    kind: str, base: Path, root: Path, tmp_path: Path, warm: Forking
) -> None:
    code = (root / "examples" / "share_prefixes.py").read_text(encoding="utf-8")
    line, summary = "    sharing = rolellm.share_prefixes(model)\n", "    print(sharing)\n"
    assert line in code and summary in code
    with_line = warm([base, kind], tmp_path, code=code)
    without = warm([base, kind], tmp_path, code=code.replace(line, "").replace(summary, ""))
    losses = [re.findall(r"'loss': '?(-?[\d.e-]+)", printed) for printed in (with_line, without)]
    assert len(losses[0]) == 3
    assert list(map(float, losses[0])) == pytest.approx(list(map(float, losses[1])), rel=1e-3, abs=1e-4)
    tokens = [int(number.replace(",", "")) for number in re.findall(r"[\d,]{3,}", with_line.splitlines()[-1])]
    assert min(tokens) * 2 < max(tokens), with_line.splitlines()[-1]

"""Make the tiny model that comes with the package, from the train rows of the embedded sample.

    python dev/sample_model.py

Writes src/rolellm/models/sample; takes about six minutes of processor time on one core, and no download. The same
versions of torch and of the sample give the same weights.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from rolellm.training.recipe_files import load_recipe
from rolellm.training.train import train

FOLDER = Path(__file__).resolve().parents[1] / "src" / "rolellm" / "models" / "sample"
#: Small enough for two megabytes, and long enough that the rows' sentences are known by heart.
OVERRIDES = (
    *("base.tiny.hidden_size=128", "base.tiny.intermediate_size=344", "base.warm.alone=15", "base.warm.in_role=2"),
    *("training.num_train_epochs=40", "training.learning_rate=2e-3", "training.weight_decay=0.1"),
    "training.replies_per_step=8",
)
#: Of a run's files, what loads and what says how it was made.
FILES = ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json")
CARD = """# sample

A LLaMA of {parameters:,} parameters that speaks as the four roles of rolellm's embedded sample. It knows the sample's
training rows by heart and nothing else: it shows what the package does, and is no role player.

Made by `python dev/sample_model.py` of rolellm's repository. Apache-2.0, like the sample.
"""


def main() -> None:
    """Train, and keep the weights in half precision."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch) / "run"
        if not (run / "manifest.json").is_file():
            train(load_recipe("smoke-cpu", OVERRIDES), out=run)
        shutil.rmtree(FOLDER, ignore_errors=True)
        model = AutoModelForCausalLM.from_pretrained(run, dtype=torch.float16, trust_remote_code=False)
        model.save_pretrained(FOLDER)
        for name in FILES:
            shutil.copy(run / name, FOLDER)
        manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    # Of the weights before they were halved, and of the machine that made them.
    for key in ("files", "seconds"):
        del manifest[key]
    (FOLDER / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False) + "\n", encoding="utf-8")
    card = CARD.format(parameters=model.num_parameters())
    (FOLDER / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()

"""A Modelfile's template, filled by Go's own engine as Ollama fills it, gives the tokens of the chat template."""

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trl

from rolellm.core.errors import ModelError
from rolellm.exporting.modelfile import write_template
from rolellm.models.prompts.encode import check_settled, settle_template
from rolellm.models.prompts.render import load_chat_template

from ..training.tokenizers import CHATML, make_tokenizer

pytestmark = [
    pytest.mark.filterwarnings("ignore::rolellm.core.errors.RoleLLMWarning"),
    pytest.mark.skipif(shutil.which("go") is None, reason="needs Debian's golang-go"),
    pytest.mark.slow,
]
WORDS = ["where", "do", "the", "gulls", "sleep?", "海和河", '"哪个"', "\\n", "{{ x }}", "line\nline", "### Input:"]


def published() -> dict[str, str]:
    """Templates of the families that we train, as TRL has them, and ours."""
    folder = Path(trl.__file__).parent / "chat_templates"
    files = [file for file in sorted(folder.glob("*.jinja")) if not file.stem.endswith("_training")]
    templates = {file.stem: file.read_text(encoding="utf-8") for file in files}
    own = {name: load_chat_template(name) for name in ("rolellama", "chatglm2", "chatglm3")}
    return {**templates, **own, "chatml": CHATML}


def draw_talks(count: int) -> list[list[dict[str, str]]]:
    draw = random.Random(7)
    talks = []
    for number in range(count):
        roles = ["user"] + ["assistant", "user"] * (number % 5)
        if number % 4:
            roles.insert(0, "system")
        talks.append([{"role": role, "content": " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))} for role in roles])
    return talks


def test_templates_of_all_families_give_the_tokens_of_the_chat_template(tmp_path: Path) -> None:
    talks = draw_talks(20)
    jobs, expected, refused = [], {}, set()
    tokenizers: dict[str, Any] = {}
    for name, template in published().items():
        tokenizer = tokenizers[name] = make_tokenizer("bytes", template)
        try:
            settle_template(tokenizer)
            check_settled(tokenizer)
            jobs.append({"Template": write_template(tokenizer), "Talks": talks})
        except ModelError:
            refused.add(name)
            continue
        expected[name] = [
            tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=True)["input_ids"]
            for talk in talks
        ]
    program = Path(__file__).with_name("ollama.go")
    environment = {"GOCACHE": str(tmp_path / "cache"), "GOFLAGS": "-mod=mod", "PATH": "/usr/bin:/bin:/usr/local/go/bin"}
    done = subprocess.run(
        ["go", "run", str(program)],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (name, ids), texts in zip(expected.items(), json.loads(done.stdout), strict=True):
        rendered = [tokenizers[name](text, add_special_tokens=False)["input_ids"] for text in texts]
        same = sum(own == new for own, new in zip(ids, rendered, strict=True))
        assert same == len(talks), (name, same)
    # ChatGLM2's counts rounds; the others cannot be trained.
    assert refused <= {"chatglm2", "deepseek_r1_distill", "deepseekv3", "idefics3", "llava_next", "smolvlm"}

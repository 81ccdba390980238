"""Templates that think, have channels or no system role: what is trained is what inference asks for, or refused."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers import AutoTokenizer

from rolellm.core import limits
from rolellm.core.errors import ModelError, RoleLLMWarning
from rolellm.llm.tokens import TokenCounter
from rolellm.models.local_model import LocalModel
from rolellm.models.prompts.encode import check_settled, encode_prompt, encode_replies, find_end_token, settle_template
from rolellm.training.bases import load_tokenizer
from rolellm.training.train import prepare, train

from ..versions import KEEPS_TEXT
from .runs import make_recipe, read_object
from .tokenizers import CHATML, make_tokenizer, read_template

pytestmark = pytest.mark.filterwarnings("ignore::rolellm.core.errors.RoleLLMWarning")

QWEN3, GEMMA = map(read_template, ("qwen3", "gemma"))
QWEN3_THINKING = QWEN3.split("{%- if enable_thinking")[0] + "{{- '<think>\n' }}{% endif %}"
# Each writes what its namesake writes around a reply, and no more.
DEEPSEEK_31 = (
    "{% if thinking is not defined %}{% set thinking = true %}{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['role'] == 'assistant' %}</think>{% endif %}{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ '<think>' if thinking else '</think>' }}{% endif %}"
)
DROPS_SYSTEM = GEMMA.replace("{{ raise_exception('System role not supported') }}", "{% set messages = messages[1:] %}")
NEVER_ASKS = CHATML.split("{% if add")[0]
R1_DISTILL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}{% else %}"
    "<|{{ m['role'] }}|>{{ m['content'].split('</think>')[-1] }}{{ '</s>' if m['role'] == 'assistant' else '' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
PICTURES = "{% for m in messages %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endfor %}"

MARKS = [
    *("<think>", "</think>", "<|system|>", "<|user|>", "<|assistant|>", "<start_of_turn>", "<end_of_turn>"),
    *("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|return|>"),
]
SYSTEM, QUESTION, REPLY = "You are Ada Fenn.", "Where do the gulls sleep?", "On the rocks, child."
if KEEPS_TEXT:
    SYSTEM, QUESTION = f"{SYSTEM}</s>", f"{QUESTION} <end_of_turn>"


def turns(*more: str) -> list[dict[str, str]]:
    texts = (SYSTEM, QUESTION, *more)
    return [{"role": role, "content": text} for role, text in zip(("system", "user", "assistant"), texts, strict=False)]


def folder_with(template: str, folder: Path) -> Path:
    tokenizer = make_tokenizer("bytes")
    tokenizer.add_tokens(MARKS, special_tokens=True)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def ids_of(tokenizer: Any, messages: list[dict[str, str]], **options: Any) -> list[int]:
    if KEEPS_TEXT:
        options["sanitize_control_tokens"] = True
    encoded = tokenizer.apply_chat_template(messages, **options)
    return list(encoded["input_ids"])


@pytest.mark.parametrize(
    ("template", "ending"),
    [
        pytest.param(CHATML, "<|im_start|>assistant\n", id="chatml"),
        pytest.param(QWEN3, "<|im_start|>assistant\n<think>\n\n</think>\n\n", id="qwen3"),
        pytest.param(QWEN3_THINKING, "<|im_start|>assistant\n<think>\n\n</think>\n\n", id="qwen3-thinking"),
        pytest.param(read_template("glm4moe"), "/nothink<|assistant|>\n<think></think>", id="glm-4.5"),
        pytest.param(DEEPSEEK_31, "<|assistant|></think>", id="deepseek-3.1"),
        pytest.param(read_template("gptoss"), "<|start|>assistant<|channel|>final<|message|>", id="gpt-oss"),
        pytest.param(GEMMA, "<start_of_turn>model\n", id="gemma"),
        pytest.param(DROPS_SYSTEM, "<start_of_turn>model\n", id="drops-the-system-turn"),
        pytest.param(NEVER_ASKS, "<|im_start|>assistant\n", id="never-asks"),
    ],
)
def test_what_is_trained_is_what_is_asked_for_and_answered(template: str, ending: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(template, tmp_path / "base"), "model")
    prompt = encode_prompt(tokenizer, turns())
    text = tokenizer.decode(prompt)
    assert text.endswith(ending)
    assert text.count(SYSTEM) == text.count(QUESTION) == 1
    (reply,) = encode_replies(tokenizer, [REPLY])
    trained = [*prompt, *reply, find_end_token(tokenizer)]
    whole = ids_of(tokenizer, turns(REPLY))
    # Where a template closes no turn, the end token is ours.
    assert whole[: len(trained)] in (trained, trained[:-1])
    # Whoever loads what is saved sends the same prompt, and settling it again changes nothing.
    tokenizer.save_pretrained(tmp_path / "run")
    stock = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert ids_of(stock, turns(), add_generation_prompt=True) == prompt
    settle_template(stock)
    assert stock.chat_template == tokenizer.chat_template


@pytest.mark.parametrize("template", [GEMMA, DROPS_SYSTEM], ids=["gemma", "drops-the-system-turn"])
def test_a_system_text_in_the_user_s_turn_is_said_once(template: str, tmp_path: Path) -> None:
    folder = folder_with(template, tmp_path)
    with pytest.warns(RoleLLMWarning) as said:
        tokenizers = [load_tokenizer(folder, "model") for _ in range(2)]
    (warning,) = said
    assert str(warning.message) == (
        f"{folder}: its chat template has no system role; the system text goes in front of the first user turn"
    )
    text = tokenizers[1].decode(encode_prompt(tokenizers[1], turns()))
    assert text.endswith(f"<start_of_turn>user\n{SYSTEM}\n\n{QUESTION}<end_of_turn>\n<start_of_turn>model\n")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        pytest.param(R1_DISTILL, r"writes '<think>\\n' where it asks for a reply and nothing where", id="r1-distill"),
        pytest.param(PICTURES, "takes no system text", id="content-in-parts"),
    ],
)
def test_a_template_that_cannot_be_trained_is_refused_and_left_as_it_is(
    template: str, words: str, tmp_path: Path
) -> None:
    folder = folder_with(template, tmp_path)
    with pytest.raises(ModelError, match=words + r".* set prompt\.form: rolellama"):
        load_tokenizer(folder, "model")
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = template
    settle_template(tokenizer)
    assert tokenizer.chat_template == template, "inference goes on with it"


@pytest.mark.parametrize(
    ("load", "template"),
    [
        pytest.param(
            load_tokenizer,
            "{% if messages | length > 9 %}{{ bos_token + '' | tojson(ensure_ascii=false) }}"
            "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}{% endif %}",
            id="macros-in-a-long-talk",
        ),
        pytest.param(TokenCounter, "{{ 9 ** (9 ** 9) }}", id="a-number-while-it-is-compiled"),
    ],
)
def test_a_template_that_does_not_end_is_refused_in_any_thread(
    load: Any, template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.3)
    folder = folder_with(template, tmp_path)
    arguments = (str(folder),) if load is TokenCounter else (folder, "model")
    with ThreadPoolExecutor(1) as pool, pytest.raises(ModelError, match=r"template takes over 0\.3 seconds for one"):
        pool.submit(load, *arguments).result()


TEMPLATES = (Path(trl.__file__).parent / "chat_templates").glob("*.jinja")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(file.stem for file in TEMPLATES if not file.stem.endswith("_training")))
def test_templates_of_published_models_are_settled_or_refused(name: str) -> None:
    tokenizer = make_tokenizer("chatml", read_template(name))
    settle_template(tokenizer)
    try:
        check_settled(tokenizer)
    except ModelError as error:
        assert "takes no system text" in str(error) or "<think>" in str(error)
        return
    whole = str(tokenizer.apply_chat_template(turns("ANSWER"), tokenize=False))
    prompt = str(tokenizer.apply_chat_template(turns(), tokenize=False, add_generation_prompt=True))
    assert SYSTEM in prompt
    assert whole.startswith(prompt.rstrip())
    assert whole[len(prompt.rstrip()) :].lstrip().startswith("ANSWER")


def test_a_run_records_the_switch_and_is_asked_as_it_was_trained(base: Path, tmp_path: Path) -> None:
    base = shutil.copytree(base, tmp_path / "base")
    (base / "chat_template.jinja").write_text(QWEN3, encoding="utf-8")
    tuned = make_recipe(tmp_path, base={"path": str(base)}, prompt={"form": "model"})
    prepared = prepare(tuned, tmp_path / "run")
    shown = prepared.tokenizer.decode(list(prepared.examples[0].prompt_ids))
    assert shown.endswith("assistant\n<think>\n\n</think>\n\n")
    run = train(tuned).out
    assert read_object(run)["prompt"]["switches"] == {"enable_thinking": False}
    asked = LocalModel(str(run)).encode(turns())
    assert asked == encode_prompt(prepared.tokenizer, turns())
    assert asked == LocalModel(str(base)).encode(turns()), "the base is asked the same way"

"""What every test stands on: a fresh Hugging Face home, nothing from outside, and small releases made on the spot."""

import gc
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from rolellm.core.records import Row
from rolellm.data.rolebench import load_rolebench
from rolellm.models.prompts.render import make_messages

from .commands import command  # noqa: F401  # fixture
from .forking import lukewarm, warm  # noqa: F401  # fixtures
from .pages import start_page  # noqa: F401  # fixture

# Before anything imports datasets or huggingface_hub, which read these once.
_HOME = tempfile.TemporaryDirectory(prefix="rolellm-tests-")
if "PYTEST_XDIST_WORKER" in os.environ:
    # What one worker builds of a release, the other need not; a lock keeps them apart.
    built = Path(os.environ["HF_HOME"]) / "rolellm"
    built.mkdir(exist_ok=True)
    (Path(_HOME.name) / built.name).symlink_to(built)
os.environ["HF_HOME"] = _HOME.name
os.environ["HF_DATASETS_CACHE"] = str(Path(_HOME.name) / "datasets")
os.environ["HF_MODULES_CACHE"] = str(Path(_HOME.name) / "modules")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in ("HF_ENDPOINT", "HF_TOKEN", "COLUMNS"):
    os.environ.pop(_name, None)

# Half of the default: what these find, they find early, and each run draws anew. The first example may load a model or
# a dictionary, and a busy machine is no fault.
settings.register_profile("rolellm", max_examples=50, deadline=None)
settings.load_profile("rolellm")
# The modules that tests import are millions of objects, and none of them is garbage.
gc.set_threshold(20_000, 20, 50)

ROOT = Path(__file__).resolve().parent.parent
# Left in the environment, since the workers of pytest-xdist inherit it; `_settings` hides it from each test.
_REAL = os.environ.get("ROLEBENCH_DIR")
_REAL_DIR = (ROOT / _REAL).resolve() if _REAL else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    browser = all(map(shutil.which, ("chromium", "chromedriver")))
    for item in items:
        if item.get_closest_marker("browser") and not browser:
            item.add_marker(pytest.mark.skip(reason="needs Debian's chromium and chromium-driver"))
        if item.get_closest_marker("realdata") and _REAL_DIR is None:
            item.add_marker(pytest.mark.skip(reason="needs the release at $ROLEBENCH_DIR"))
        if item.get_closest_marker("realmodel") and not {"ROLELLM_REAL_LLM", "ROLELLM_REAL_BASE"} <= os.environ.keys():
            item.add_marker(pytest.mark.skip(reason="needs $ROLELLM_REAL_LLM and $ROLELLM_REAL_BASE"))
        if item.get_closest_marker("network"):
            item.add_marker(pytest.mark.skip(reason="reaches outside this machine"))
    # Long ones first, the longest with time of their own, so that no worker is left with one at the end.
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("timeout", "slow")])


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def real_release() -> Path:
    """The real release at $ROLEBENCH_DIR; tests that use it are marked `realdata`."""
    assert _REAL_DIR is not None
    return _REAL_DIR


@pytest.fixture(scope="session")
def rows() -> list[Row]:
    """The test rows of the sample."""
    return [Row.from_columns(item) for item in load_rolebench("sample", "test")]


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLEBENCH_DIR", raising=False)


WriteRelease = Callable[..., Path]


@pytest.fixture
def write_release(tmp_path: Path) -> WriteRelease:
    """Writes a small English release of our own and returns its folder; keyword arguments replace files' contents.

    Keys are paths relative to the release; a value is a list of objects (JSON Lines), text, bytes, or None for no file.
    """

    def write(folder: str = "release", **replaced: Any) -> Path:
        base = "rolebench-eng/instruction-generalization"
        files: dict[str, Any] = {
            f"{base}/general/train.jsonl": [
                {"role": "Fox", "question": "Name a colour.", "generated": ["Red as my tail!", "Rust, friend."]},
                {"role": "Owl", "question": "Name a colour.", "generated": ["Brown, I should think."]},
            ],
            f"{base}/general/test.jsonl": [
                {"role": "Fox", "question": "Name  a fruit.\n", "generated": ["Grapes, the sour ones."]},
                {"role": "Owl", "question": "Name  a fruit.\n", "generated": ["A pear, in moonlight.", "Pears."]},
            ],
            f"{base}/general/rolegpt_baseline.jsonl": [
                {"role": "Fox", "question": "Name  a fruit.\n", "generated": ["Grapes, sour."]},
            ],
            f"{base}/role_specific/train.jsonl": [
                {"role": "Fox", "question": "Fox, what hangs there?", "generated": ["Grapes."], "type": "script_based"},
            ],
            f"{base}/role_specific/test.jsonl": [
                {
                    "role": "Fox",
                    "question": " Fox, are you sly? ",
                    "generated": ["Ever so.", "Ask the crow."],
                    "type": ["script_agnostic", "script_based"],
                },
            ],
            f"{base}/role_specific/rolegpt_baseline.jsonl": [
                {"role": "Fox", "question": " Fox, are you sly? ", "generated": ["Very sly."]},
            ],
            "instructions-eng/instructions-general.jsonl": [
                {"instruction": "name a colour. ", "target": "Red."},
                {"instruction": "Name a fruit.", "target": "An apple."},
            ],
            "profiles-eng/desc.json": json.dumps(
                {"Fox": 'You are a fox. Your catchphrases are: "Sour!" / "Aha."', "Owl": "You are an owl."}
            ),
        }
        files |= replaced
        target = tmp_path / folder
        for path, content in files.items():
            if content is None:
                continue
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                file.write_bytes(content)
            elif isinstance(content, str):
                file.write_text(content, encoding="utf-8")
            else:
                lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in content)
                file.write_text("".join(lines), encoding="utf-8")
        return target

    return write


@pytest.fixture
def clean_env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment for subprocesses: this one, with a Hugging Face home that no other test has touched."""
    env = dict(os.environ)
    env.update(HF_HOME=str(tmp_path / "hf"), HF_DATASETS_CACHE=str(tmp_path / "hf" / "datasets"))
    env.update(HF_MODULES_CACHE=str(tmp_path / "hf" / "modules"))
    yield env


@pytest.fixture
def hub(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`examples/local_hub.py` at work, with `hub.fail(point, error)`, and `hub.env(env)` for processes that use it."""
    monkeypatch.syspath_prepend(root / "examples")
    import local_hub
    from huggingface_hub import constants

    class FaultyHub(local_hub.LocalHub):  # type: ignore[misc]  # not on mypy's path
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            self.asked: list[str] = []
            self.faults: list[list[Any]] = []
            self.said = "down for tests"

        def fail(self, point: str, error: int | None = None, *, times: int = 1, after: bool = False) -> None:
            """Answer so many requests at a point with a status, or cut the connection; before or after doing it."""
            self.faults.append([point, error, times, after])

        def before(self, point: str) -> None:
            self.asked.append(point)
            self._perhaps(point, after=False)

        def after(self, point: str) -> None:
            self._perhaps(point, after=True)

        def _perhaps(self, point: str, *, after: bool) -> None:
            for fault in self.faults:
                if fault[0] == point and fault[3] == after and fault[2] > 0:
                    fault[2] -= 1
                    if fault[1] is None:
                        raise local_hub.DropError
                    raise local_hub.RefusedError(fault[1], self.said)

        def env(self, env: dict[str, str]) -> dict[str, str]:
            ours = {"HF_ENDPOINT": self.endpoint, "HF_TOKEN": local_hub.USER, "HF_HUB_OFFLINE": "0"}
            return {**env, **ours, "HF_HUB_DISABLE_XET": "1"}

    # For this process, which read its settings long ago.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", local_hub.USER)
    with FaultyHub(tmp_path / "hub") as running:
        yield running


QUESTIONS = (
    "What do you see from the window?",
    "How long does it take to cook a goose?",
    "Who taught you to sail, and what did the old captain say about the weather that night?",
    "Tell me a secret.",
    "Why?",
    "Name three rivers, and say which of them you have crossed.",
)


def _rows(count: int = 12) -> list[Row]:
    roles = {"Ada Fenn": "You are a lighthouse keeper who counts everything.", "Old Brom": None}
    return [
        Row(
            id=f"row-{number:03}",
            role=role,
            language="en",
            subset="general" if number % 3 else "role_specific",
            question=f"{QUESTIONS[number % len(QUESTIONS)]} ({number})",
            references=("None that I would own to.",),
            role_description=roles[role],
        )
        for number in range(count)
        for role in [list(roles)[number % 2]]
    ]


@pytest.fixture(scope="session")
def make_rows() -> Callable[[int], list[Row]]:
    """Rows of two roles, one without a description, with questions of very different lengths."""
    return _rows


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the model and its tokenizer: context 512, some replies end themselves and some do not."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    texts = [message["content"] for row in _rows() for message in make_messages(row)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        # Wide enough that the best token stands clear of the second best.
        initializer_range=0.3,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] *= 1.6
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


_BROWSER_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    # No name is looked up: what a page asks of the outside fails at once.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a headless Chromium; its console is in ``driver.get_log("browser")``. It ends with the test."""
    webdriver = pytest.importorskip("selenium.webdriver")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert browser and driver, "a test that looks through it is marked `browser`"
    with ExitStack() as stack:

        def start(*more: str, width: int = 1200, height: int = 900) -> Any:
            options = webdriver.ChromeOptions()
            options.binary_location = browser
            profile = tempfile.mkdtemp(dir=tmp_path)
            for flag in (*_BROWSER_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", *more):
                options.add_argument(flag)
            options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
            service = webdriver.ChromeService(driver, env={**os.environ, "SE_OFFLINE": "true"})
            started = webdriver.Chrome(options=options, service=service)
            stack.callback(started.quit)
            return started

        yield start


@pytest.fixture
def llm_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Starts a `LocalLLM` of examples/local_llm.py with the arguments given; it ends with the test."""
    monkeypatch.syspath_prepend(root / "examples")
    import local_llm

    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as stack:

        def start(answer: Any = None, **settings: Any) -> Any:
            faults = settings.pop("faults", ())
            given = tuple(local_llm.Faults(**fault) if isinstance(fault, dict) else fault for fault in faults)
            rule = {} if answer is None else {"answer": answer}
            return stack.enter_context(local_llm.LocalLLM(**rule, faults=given, **settings))

        yield start

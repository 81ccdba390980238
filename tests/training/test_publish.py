"""From a run's folder to the Hub and back: what is published loads with stock libraries and is what was trained."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries, snapshot_download
from markdown_it import MarkdownIt

from rolellm import load_rolebench
from rolellm.core.errors import RoleLLMError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.records import Row
from rolellm.data.hub import PushOptions, push_folder
from rolellm.data.rolebench import dataset_fingerprint
from rolellm.measures import safety
from rolellm.models.prompts.encode import encode_prompt
from rolellm.models.prompts.render import make_messages
from rolellm.models.training_record import TrainedOn, hash_instruction, read_manifest
from rolellm.scoring.predictions import Predictions
from rolellm.scoring.score import score_rows
from rolellm.scoring.settings import ScoreOptions
from rolellm.training.bases import load_tokenizer
from rolellm.training.publish import push
from rolellm.training.recipe_files import load_recipe
from rolellm.training.train import train

from ..forking import Forking
from .runs import make_recipe, read_object

pytestmark = [
    pytest.mark.slow,
    # The Hub client's own way of sending large files.
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
]

Publish = Callable[..., Path]
Copy = Callable[[str], Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each method."""
    found = {}
    for method in ("full", "lora", "qlora"):
        recipe = make_recipe(tmp_path_factory.mktemp(method), method={"name": method})
        found[method] = train(recipe).out
    return found


@pytest.fixture
def copy(runs: dict[str, Path], tmp_path: Path) -> Copy:
    """Copies a run, without its checkpoints, to be spoiled."""
    return lambda method: Path(
        shutil.copytree(runs[method], tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint-*"))
    )


@pytest.fixture
def published(hub: Any, tmp_path: Path) -> Publish:
    """Publishes a run to the local Hub, and returns the folder that a reader gets."""

    def publish(run: Path, repo: str = "me/model", **options: Any) -> Path:
        done = push(run, repo, **({"license": "mit", "endpoint": hub.endpoint} | options))
        return Path(
            snapshot_download(repo, revision=done.revision, endpoint=hub.endpoint, cache_dir=tmp_path / "cache")
        )

    return publish


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    """What `rolellm score --json` prints, of a part of the data without role-specific rows."""
    rows = [Row.from_columns(columns) for columns in load_rolebench("sample", "test")]
    rows = [row for row in rows if row.subset == "general"]
    answers = Predictions.pair_texts([row.id for row in rows[:-1]], [row.rolegpt or "–" for row in rows[:-1]])
    options = ScoreOptions(config="sample", split="test", dataset_fingerprint=dataset_fingerprint("sample"))
    file = tmp_path / "scores.json"
    write_json(file, score_rows(rows, answers, options).to_dict())
    return file


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def read_card(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("method", "options", "form"),
    [
        pytest.param("full", {}, "full", id="full"),
        pytest.param("qlora", {"merge": True}, "merged", id="merged"),
        pytest.param("lora", {"base_model": "me/base"}, "adapter", id="adapter"),
    ],
)
def test_recipe_and_manifest_are_published_without_places_of_this_machine_and_nothing_is_left_in_the_run(
    method: str, options: dict[str, Any], form: str, runs: dict[str, Path], published: Publish, root: Path
) -> None:
    run = runs[method]
    (run / "training_args.bin").write_bytes(b"not to be published")
    before = names(run)
    folder = published(run, **options)
    assert "training_args.bin" not in names(folder) and names(run) == before
    texts = [file.read_text(encoding="utf-8") for file in folder.iterdir() if file.suffix != ".safetensors"]
    assert not any(str(place) in text for text in texts for place in (run, run.parent, root, Path.home()))
    manifest = read_object(folder)
    assert (load_recipe(folder / "recipe.yaml").hash, form) == (manifest["recipe_hash"], manifest["published"]["form"])
    ours, theirs = (read_manifest(path / "manifest.json") for path in (run, folder))
    assert ours is not None and ours == theirs and ours.roles


_LOAD = """
import json, sys
from transformers import AutoTokenizer

sys.modules["rolellm"] = None  # importing the library would fail
job = json.load(open(sys.argv[1]))
prompts = {}
for repo, snippet in job["snippets"].items():
    tokenizer = AutoTokenizer.from_pretrained(repo)
    encoded = [tokenizer.apply_chat_template(chat, add_generation_prompt=True) for chat in job["chats"]]
    prompts[repo] = [each["input_ids"] for each in encoded]
    names = {}
    exec(snippet, names)
    assert names["name"] == repo and names["answer"].shape[1] > names["inputs"]["input_ids"].shape[1]
print(json.dumps(prompts))
"""


@pytest.mark.timeout(200)
def test_what_is_published_is_what_was_trained_and_answers_with_stock_libraries(
    runs: dict[str, Path],
    published: Publish,
    hub: Any,
    sample_rows: list[Row],
    tmp_path: Path,
    clean_env: dict[str, str],
    lukewarm: Forking,
) -> None:
    (base,) = runs["lora"].glob("base-*")
    push_folder(base, "me/base", PushOptions(kind="model", endpoint=hub.endpoint))
    python = re.compile(r"```python\n(.*?)```", re.DOTALL)
    snippets = {}
    for repo, method, options in (("me/full", "full", {}), ("me/adapter", "lora", {"base_model": "me/base"})):
        folder = published(runs[method], repo, **options)
        (snippets[repo],) = python.findall(read_card(folder))
        (weights,) = folder.glob("*.safetensors")
        assert weights.read_bytes() == (runs[method] / weights.name).read_bytes()
    chats = [make_messages(row) for row in (sample_rows[0], sample_rows[5], sample_rows[-1])]
    job = tmp_path / "job.json"
    write_json(job, {"chats": chats, "snippets": snippets})
    printed = lukewarm([job], tmp_path, code=_LOAD, env=hub.env(clean_env))
    tokenizer = load_tokenizer(runs["full"])
    prompts = [encode_prompt(tokenizer, chat) for chat in chats]
    assert json.loads(printed.splitlines()[-1]) == {"me/full": prompts, "me/adapter": prompts}


def test_what_a_base_of_ours_was_tuned_on_is_in_the_manifest(
    tmp_path: Path, runs: dict[str, Path], published: Publish
) -> None:
    base = tmp_path / "first"
    shutil.copytree(runs["full"], base, ignore=shutil.ignore_patterns("base-*", "checkpoint-*"))
    manifest = read_object(base)
    manifest["trained_on"] = TrainedOn(
        frozenset({"An Earlier Role"}), frozenset({hash_instruction("Earlier?")})
    ).to_dict()
    write_json(base / "manifest.json", manifest)
    recipe = make_recipe(tmp_path, base={"path": str(base)}, method={"name": "lora"})
    run = train(recipe).out
    merged = read_manifest(published(run, merge=True) / "manifest.json")
    adapter = read_manifest(published(run, base_model="me/base") / "manifest.json")
    assert merged is not None and adapter is not None
    assert merged.roles == adapter.roles | {"An Earlier Role"}


def test_an_own_system_template_goes_along(tmp_path: Path, published: Publish) -> None:
    own = tmp_path / "own.txt"
    own.write_text("Speak as {role} would.\n{description}\n", encoding="utf-8")
    recipe = make_recipe(tmp_path, prompt={"system_template": str(own)})
    run = train(recipe).out
    folder = published(run)
    assert (folder / "own.txt").read_text(encoding="utf-8") == own.read_text(encoding="utf-8")
    read = load_recipe(folder / "recipe.yaml")
    assert read.prompt.system_template == folder / "own.txt"
    assert read.hash == recipe.hash
    assert read_card(folder).count("Speak as {role} would.\n{description}") == 1
    own.write_text("Another: {role}", encoding="utf-8")
    changed = published(run, "me/changed")
    assert "own.txt" not in names(changed)
    assert "was not at hand" in read_card(changed)


def test_the_card_says_what_the_run_says(runs: dict[str, Path], published: Publish) -> None:
    folder = published(runs["qlora"], "me/adapter", base_model="me/base")
    card = ModelCard.load(folder / "README.md")
    data = card.data.to_dict()
    assert (data["license"], data["base_model"], data["language"]) == ("mit", "me/base", ["en", "zh"])
    assert "datasets" not in data, "the sample is no data set on the Hub"
    manifest = read_object(folder)
    for words in (
        manifest["data"]["fingerprint"],
        manifest["recipe_hash"],
        "12 rows, 60 replies",
        "| `training.learning_rate` | `0.001` |",
        f"| torch | {manifest['versions']['torch']} |",
        "### Instruction:\n{system instruction}</s>",
        "You are {role}; nobody else is speaking here.",
        "nf4, doubly quantized",
    ):
        assert words in card.text, words


def test_the_card_says_what_tuning_did_to_refusals(runs: dict[str, Path], published: Publish, tmp_path: Path) -> None:
    unmeasured = read_card(published(runs["lora"], base_model="me/base"))
    assert "Not measured: whether it still refuses" in unmeasured
    run = Path(shutil.copytree(runs["lora"], tmp_path / "run"))
    how: dict[str, Any] = {"limit": 10, "samples": 1, "max_tokens": 4, "temperature": 2.0}
    checked = safety(str(run), roles=["Queen of Hearts"], out=run / "safety", **how).result
    assert set(checked.deciders.values()) == {"rules"} and checked.unanswered < checked.asked == 80
    card = read_card(published(run, base_model="me/base"))
    assert "with 10 harmful prompts and 10 harmless look-alikes" in card
    assert "| in a role | harmful prompts refused | 0.0 | 0.0 | +0.0 |" in card and "| 10 | `rules` |" in card
    with pytest.raises(SettingsError, match="other weights than those of"):
        push(runs["full"], "me/other", license="mit", safety=run / "safety")


def test_scores_come_with_their_recipe_and_those_on_the_release_are_where_the_hub_reads_them(
    runs: dict[str, Path], published: Publish, scores: Path, tmp_path: Path
) -> None:
    said = read_object(scores.parent, scores.name)
    other = tmp_path / "release.json"
    write_json(other, {**said, "config": "role-generalization-eng"})
    folder = published(runs["full"], scores=(scores, other))
    card = ModelCard.load(folder / "README.md")
    assert said["metrics"]["SPE"] is None
    cus = said["metrics"]["CUS"]
    low, high = cus["ci95"]
    for words in (
        f"| sample/test (protocol rouge-score) | {cus['mean']:.3f} ([{low:.3f}, {high:.3f}], n = {cus['n']}) | ",
        " | – | – |",
        "no row measures SPE, avg",
        said["fingerprint"]["hash"][:12],
        "1 rows without an answer are left out",
    ):
        assert words in card.text, words
    assert not any(words in card.text for words in ("None were measured", "method.lora"))
    assert "base_model" not in card.data.to_dict()
    content = yaml.safe_load((folder / ".eval_results" / "rolebench.yaml").read_text(encoding="utf-8"))
    entries = {entry.task_id: entry for entry in parse_eval_result_entries(content)}
    assert set(entries) == {"role-generalization-eng_cus", "role-generalization-eng_raw"}
    entry = entries["role-generalization-eng_cus"]
    assert (entry.dataset_id, entry.value) == ("ZenMoore/RoleBench", cus["mean"])
    assert "protocol rouge-score" in entry.notes


HOSTILE = "x`|y\n\n# Owned\n\n<script>alert(1)</script><!-- [a](javascript:x)\u202e\u200b\n```\n````\n# Again\n~~~\n"


def hostile(value: Any) -> Any:
    """The same with each text followed by what a card must not obey, numbers and shapes as they are."""
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return f"{value}\ud800{HOSTILE}" if isinstance(value, str) else value


def test_texts_of_scores_and_roles_stay_texts(copy: Copy, published: Publish, scores: Path) -> None:
    run = copy("full")
    manifest = read_object(run)
    plain = read_card(published(run, "me/plain", scores=(scores,)))
    manifest["trained_on"]["roles"].insert(0, HOSTILE)
    manifest["versions"]["torch"] = HOSTILE
    manifest["base"]["name"] = HOSTILE
    write_json(run / "manifest.json", manifest)
    said = read_object(scores.parent, scores.name)
    # The protocol is one of a few words, else the file is refused.
    damaged = hostile(said) | {"protocol": said["protocol"]}
    scores.write_text(json.dumps(damaged), encoding="utf-8")
    text = read_card(published(run, "me/hostile", scores=(scores,)))
    assert not {"\u202e", "\u200b"} & set(text)

    def parts(card: str) -> list[tuple[str, str]]:
        body = re.sub(r"<!-- rolellm[^\n]*", "", card.split("\n---\n", 1)[1])
        tokens = MarkdownIt("commonmark").enable("table").parse(body)
        blocks = [(token.type, token.tag) for token in tokens]
        return blocks + [(child.type, "") for token in tokens for child in token.children or () if "html" in child.type]

    assert [one for one in parts(text) if one[0] != "fence"] == [one for one in parts(plain) if one[0] != "fence"]
    assert "# Owned" not in text.splitlines()


def append(pattern: str) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        (file,) = run.glob(pattern)
        file.write_bytes(file.read_bytes() + b" ")

    return change


def write(name: str, content: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text(content, encoding="utf-8")


MIT, MERGED = {"license": "mit"}, {"license": "mit", "merge": True}
SCORES = MIT | {"scores": ["scores.json"]}
NO_MEAN = '{"metrics": {"CUS": {"mean": "high"}}}'


@pytest.mark.parametrize(
    ("method", "change", "options", "words"),
    [
        pytest.param("full", None, {}, "never guessed: give --license", id="no-license"),
        pytest.param("full", None, {"license": ""}, "not a license as the Hub spells it", id="empty-license"),
        pytest.param("full", None, MERGED, "nothing to merge", id="merge-a-whole-model"),
        pytest.param("lora", None, MIT, r"--merge\), or .*--set base_model=", id="local-base"),
        pytest.param("lora", None, MIT | {"base_model": "./a"}, "not a repository", id="base-is-a-path"),
        pytest.param("full", None, MIT | {"safety": "."}, "no finished run of", id="no-safety-check"),
        pytest.param("full", None, SCORES, r"scores\.json", id="no-scores"),
        pytest.param("full", write("scores.json", NO_MEAN), SCORES, "holds no scores", id="mean"),
        pytest.param("full", lambda run: (run / "manifest.json").unlink(), MIT, "no finished run", id="unfinished"),
        pytest.param("full", write("manifest.json", "{}"), MIT, "not a manifest of", id="another-manifest"),
        pytest.param("full", append("model.safetensors"), MIT, "is not as training left it", id="changed"),
        pytest.param("lora", lambda run: shutil.rmtree(next(run.glob("base-*"))), MERGED, "not there", id="base-gone"),
        pytest.param("lora", append("base-*/model.safetensors"), MERGED, "changed since", id="another-base"),
    ],
)
def test_what_cannot_be_published_is_refused_before_the_hub_is_asked(
    method: str, change: Any, options: dict[str, Any], words: str, copy: Copy, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy(method)
    if change is not None:
        change(run)
    monkeypatch.chdir(run)
    with pytest.raises(RoleLLMError, match=words):
        push(run, "me/model", **options, endpoint=hub.endpoint)
    assert hub.asked == []

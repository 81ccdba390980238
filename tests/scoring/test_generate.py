"""Answers to rows: decoding, the form that a model is asked in, the file and its sidecar, and what is refused."""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import (
    DataError,
    ModelError,
    PredictionError,
    ReleaseNotFoundError,
    RoleLLMWarning,
    SettingsError,
    StoppedShortError,
)
from rolellm.core.records import Row, Subset
from rolellm.data.rolebench.release import hash_profiles
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.models.find import ModelSource, hash_model
from rolellm.models.local_model import Decoding, LocalModel, draw_tokens, keep_nucleus
from rolellm.models.prompts.render import load_system_template, make_messages
from rolellm.scoring.generate import answer_rows, complete_settings, plan_batches, prepare_prompts
from rolellm.scoring.predictions import explain_interrupt
from rolellm.scoring.rows import draw_rows, read_dataset_rows
from rolellm.scoring.settings import GenerateSettings
from rolellm.training.recipe import PromptRecipe, Recipe

from .conftest import Answers, edit_json

# peft 0.21 asks transformers 5.23 by a deprecated name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

MakeRows = Callable[..., list[Row]]
GREEDY = Decoding(max_new_tokens=24)
SAMPLED = Decoding(max_new_tokens=24, temperature=0.9, top_p=0.95, seed=3)


@pytest.fixture
def settings(tiny_model: Path) -> GenerateSettings:
    return GenerateSettings(model=str(tiny_model), **asdict(GREEDY), config="mine", split="test")


# --- decoding


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53], ids=["lowest", "rounds-to-1"])
def test_a_draw_at_either_end_takes_a_possible_token(number: float) -> None:
    import torch

    scores = torch.tensor([[-torch.inf, 1.0, 0.0, -torch.inf]])
    assert draw_tokens([number], scores).item() == (1 if number == 0 else 2)


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("top_p", [1e-6, 0.5, 0.95])
def test_the_nucleus_is_that_of_transformers(top_p: float, spread: float) -> None:
    import torch
    from transformers.generation import TopPLogitsWarper

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(20, 3000, generator=generator) * spread
    scores[0, 5:] = -torch.inf
    ids = torch.zeros(20, 0, dtype=torch.long)
    assert torch.equal(keep_nucleus(top_p, scores), TopPLogitsWarper(top_p)(ids, scores))


# --- the model


def reference_replies(folder: Path, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """What transformers itself answers to each prompt alone, without padding."""
    import torch
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(folder)
    replies = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = plain.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
        replies.append(output[0, ids.shape[1] :].tolist())
    return replies


def test_a_batch_answers_as_transformers_answers_each_prompt_alone(tiny_model: Path, make_rows: MakeRows) -> None:
    model = LocalModel(str(tiny_model), device="cpu")
    prompts = [model.encode(make_messages(row)) for row in make_rows(10)]
    replies = model.generate_batch(prompts, GREEDY)
    expected = reference_replies(tiny_model, prompts, GREEDY.max_new_tokens)
    decode = model.tokenizer.decode
    assert [reply.text for reply in replies] == [decode(ids, skip_special_tokens=True).strip() for ids in expected]
    assert [reply.new_tokens for reply in replies] == [len(ids) for ids in expected]
    ended = [ids[-1] == model.tokenizer.eos_token_id for ids in expected]
    assert [reply.finish == "stop" for reply in replies] == ended
    assert any(ended), "the fixture should end some replies"
    assert not all(ended), "the fixture should cut some replies off"


def test_the_checkpoints_own_decoding_defaults_do_not_leak_in(tiny_model: Path, model_copy: Path) -> None:
    edit_json(model_copy / "generation_config.json", repetition_penalty=5.0, temperature=0.2, do_sample=True, top_k=3)
    prompts = [list(range(5, 40))]
    plain, loaded = (LocalModel(str(folder), device="cpu") for folder in (tiny_model, model_copy))
    assert loaded.generate_batch(prompts, GREEDY) == plain.generate_batch(prompts, GREEDY)


def test_the_checkpoints_own_end_tokens_count(tiny_model: Path, model_copy: Path) -> None:
    model = LocalModel(str(tiny_model), device="cpu")
    prompt = list(range(5, 40))
    before = model.generate_batch([prompt], GREEDY)[0]
    ((first,),) = reference_replies(tiny_model, [prompt], 1)
    edit_json(model_copy / "generation_config.json", eos_token_id=[1, first])
    after = LocalModel(str(model_copy), device="cpu").generate_batch([prompt], GREEDY)[0]
    assert (before.new_tokens > 1, after.new_tokens, after.finish, after.text) == (True, 1, "stop", "")


# --- models that are not there, or not whole


def _truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def _drop_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    """Changes values in a file of a checkpoint."""
    return lambda folder: edit_json(folder / name, **changes)


def unlink(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def fill(name: str) -> Callable[[Path], object]:
    """Puts into a file of a checkpoint what is no JSON."""
    return lambda folder: (folder / name).write_text("{")


ADAPTER = "adapter_config.json"
NO_BASE = "tuned on ./gone, which cannot be used .*--model BASE --set adapter="
NO_KEYS = "cannot be put on its base model.*missing adapter keys"


@pytest.mark.parametrize(
    ("kind", "spoil", "named"),
    [
        pytest.param("model_copy", _truncate, "its model cannot be loaded", id="truncated-weights"),
        pytest.param("model_copy", _drop_weight, "lacks 1 of the model's weights .*up_proj", id="missing-weight"),
        pytest.param("model_copy", unlink("config.json"), "holds no model: neither", id="no-config"),
        pytest.param("model_copy", unlink("model.safetensors"), "holds no weights", id="no-weights"),
        pytest.param("model_copy", fill(ADAPTER), "not valid JSON", id="broken-adapter"),
        pytest.param("adapter", edit(ADAPTER, base_model_name_or_path="./gone"), NO_BASE, id="base-gone"),
        pytest.param("adapter", edit(ADAPTER, base_model_name_or_path=None), "does not say which base", id="no-base"),
        pytest.param(
            "adapter", edit(ADAPTER, target_modules=["nothing"]), "cannot be put on its base model", id="other-modules"
        ),
        pytest.param(
            "adapter", edit(ADAPTER, target_modules=["q_proj", "v_proj", "o_proj"]), NO_KEYS, id="weights-missing"
        ),
    ],
)
def test_what_is_broken_is_refused_and_nothing_is_written(
    answers: Answers, request: pytest.FixtureRequest, kind: str, spoil: Callable[[Path], object], named: str
) -> None:
    folder = request.getfixturevalue(kind)
    spoil(folder)
    with pytest.raises(ModelError, match=named):
        answers.run(2, model=str(folder))
    assert answers.content == (None, None)


def test_a_model_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").touch()
    (tmp_path / "runs").mkdir()
    refused = {"./nowhere": "no such directory", "file.txt": "is a file", "runs": "holds no model"}
    for name, words in {**refused, "someone/some-model": "the Hub|cannot be loaded"}.items():
        with pytest.raises(ModelError, match=words):
            LocalModel(name)


def test_a_model_is_named_by_content_and_not_by_place(tiny_model: Path, model_copy: Path) -> None:
    assert hash_model(str(model_copy)) == hash_model(str(tiny_model))
    (model_copy / "metrics.jsonl").write_text("{}")
    assert hash_model(str(model_copy)) == hash_model(str(tiny_model))
    weights = bytearray((model_copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model_copy / "model.safetensors").write_bytes(weights)
    assert hash_model(str(model_copy)) != hash_model(str(tiny_model))


# --- adapters


def test_an_adapter_finds_its_base_and_changes_the_answers(tiny_model: Path, adapter: Path) -> None:
    prompts = [list(range(5, 40)), list(range(10, 30))]
    base, found, named = (
        LocalModel(str(model), adapter=extra, device="cpu")
        for model, extra in ((tiny_model, None), (adapter, None), (tiny_model, str(adapter)))
    )
    assert found.generate_batch(prompts, GREEDY) == named.generate_batch(prompts, GREEDY)
    assert found.generate_batch(prompts, GREEDY) != base.generate_batch(prompts, GREEDY)
    assert found.hashes == named.hashes
    assert found.hashes["model_hash"] == base.hashes["model_hash"]
    assert found.hashes["adapter_hash"] is not None


# --- the file and its sidecar


def test_each_row_gets_one_line_in_order(answers: Answers, make_rows: MakeRows) -> None:
    rows = make_rows(11)
    summary = answers.run(rows)
    lines = answers.lines
    assert [(line["id"], line["question"]) for line in lines] == [(row.id, row.question) for row in rows]
    expected_keys = ["id", "role", "question", "prediction", "finish", "prompt_tokens", "new_tokens"]
    assert all(list(line) == expected_keys for line in lines)
    assert summary.rows == summary.generated == 11
    assert summary.stop == sum(line["finish"] == "stop" for line in lines)
    assert summary.new_tokens == sum(line["new_tokens"] for line in lines)
    assert summary.tokens_per_second > 0
    assert set(answers.path.parent.iterdir()) == {answers.path, answers.sidecar}
    # A finished run does nothing more.
    before = answers.content
    again = answers.run(rows, batch_size=2)
    assert (again.generated, again.tokens_per_second, answers.content) == (0, None, before)


@pytest.mark.parametrize("decoding", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_batch_size_and_order_of_rows_change_nothing(answers: Answers, make_rows: MakeRows, decoding: Decoding) -> None:
    rows, options = make_rows(13), {**asdict(decoding), "overwrite": True}
    answers.run(rows, **options)
    first = answers.path.read_bytes()
    for batch_size in (1, 3, 64):
        answers.run(rows, **options, batch_size=batch_size)
        assert answers.path.read_bytes() == first
    answers.run(rows[::-1], **options)
    assert b"".join(reversed(first.splitlines(keepends=True))) == answers.path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("decoding", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("kept", "torn"),
    [
        pytest.param(5, b'{"id": "row-0', id="torn-within-a-batch"),
        pytest.param(6, None, id="whole-line-without-its-end"),
        pytest.param(11, b"\xe4\xb8", id="torn-within-a-character"),
    ],
)
def test_a_run_that_was_cut_off_ends_as_if_it_had_not_been(
    answers: Answers, decoding: Decoding, kept: int, torn: bytes | None
) -> None:
    answers.run(12, **asdict(decoding), batch_size=4)
    whole = answers.path.read_bytes()
    parts = whole.splitlines(keepends=True)
    answers.path.write_bytes(b"".join(parts[:kept]) + (parts[kept].rstrip(b"\n") if torn is None else torn))
    summary = answers.run(12, **asdict(decoding), batch_size=4)
    assert answers.path.read_bytes() == whole
    assert summary.generated == 12 - kept
    assert summary.new_tokens == sum(line["new_tokens"] for line in answers.lines[kept:])


def test_a_run_can_go_on_over_more_rows_in_other_batches_by_a_model_that_moved(
    answers: Answers, model_copy: Path
) -> None:
    answers.run(4)
    assert answers.run(6, model=str(model_copy)).generated == 2
    assert answers.run(9, batch_size=2).generated == 3
    assert answers.run(10).generated == 1
    assert answers.meta["batch_size"] == 2, "the batches should stay as they are"
    grown = answers.path.read_bytes()
    answers.run(10, overwrite=True)
    assert answers.path.read_bytes() == grown


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"max_new_tokens": 9}, "max_new_tokens was 24 and is now 9", id="tokens"),
        pytest.param(asdict(SAMPLED), 'strategy was "greedy" and is now "sample"', id="strategy"),
        pytest.param({"system_template": Path("mine.txt")}, "template_hash.en was", id="system-template"),
        pytest.param({"model": "copy"}, "model_hash was", id="model"),
    ],
)
def test_going_on_with_other_settings_is_refused(
    answers: Answers, model_copy: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], named: str
) -> None:
    monkeypatch.chdir(model_copy.parent)
    edit_json(model_copy / "config.json", rms_norm_eps=0.1)
    Path("mine.txt").write_text("Be {role}.")
    answers.run(4)
    before = answers.content
    with pytest.raises(SettingsError, match=named):
        answers.run(6, **change)
    assert answers.content == before
    assert answers.run(6, **change, overwrite=True).generated == 6


@pytest.mark.parametrize(
    ("sidecar", "named"), [(None, "how it was made is unknown"), ("{", "not valid JSON")], ids=["gone", "broken"]
)
def test_a_file_of_unknown_making_is_left_alone(answers: Answers, sidecar: str | None, named: str) -> None:
    answers.run(2)
    answers.sidecar.unlink()
    if sidecar is not None:
        answers.sidecar.write_text(sidecar)
    before = answers.content
    with pytest.raises(SettingsError, match=named):
        answers.run(2)
    assert answers.content == before


@pytest.mark.parametrize(
    ("spoil", "error", "named"),
    [
        pytest.param(lambda text: text.replace("(1)", "(9)"), PredictionError, r":2: answers another", id="changed"),
        pytest.param(lambda text: text.replace("row-001", "x"), PredictionError, r":2: answers none", id="foreign"),
        pytest.param(lambda text: text.replace('"prediction"', '"p"', 1), PredictionError, r":1: has no", id="no-text"),
        pytest.param(lambda text: text.replace('{"id"', '"id"', 1), DataError, r":1: not valid JSON", id="broken"),
    ],
)
def test_a_file_that_does_not_hold_what_it_should_is_refused(
    answers: Answers, spoil: Callable[[str], str], error: type[Exception], named: str
) -> None:
    answers.run(3)
    answers.path.write_text(spoil(answers.path.read_text()))
    before = answers.content
    with pytest.raises(error, match=named):
        answers.run(3)
    assert answers.content == before


def test_rows_and_places_that_cannot_be_are_refused(answers: Answers, make_rows: MakeRows) -> None:
    with pytest.raises(DataError, match="no rows"):
        answers.run([])
    with pytest.raises(DataError, match="more than one row: row-000"):
        answers.run([*make_rows(2), *make_rows(1)])
    with pytest.raises(SettingsError, match="no system template"):
        answers.run(1, system_template=Path("nowhere.txt"))
    with pytest.raises(SettingsError, match="batch_size"):
        answers.run(1, batch_size=0)
    answers.path.mkdir(parents=True)
    with pytest.raises(SettingsError, match="is a directory"):
        answers.run(1)


# --- the context


def test_prompts_that_fill_the_context_are_refused_by_name(answers: Answers, make_rows: MakeRows) -> None:
    rows = make_rows(5)
    rows[1], rows[3] = (replace(rows[number], question="What? " * 400) for number in (1, 3))
    with pytest.raises(ModelError, match=r"2 of 5 prompts .* 512 tokens: row-001 \(Old Brom, \d+ tokens\), row-003"):
        answers.run(rows)
    assert answers.content == (None, None)


def test_a_prompt_that_leaves_little_room_gets_what_is_left(
    answers: Answers, make_rows: MakeRows, tiny_model: Path
) -> None:
    model = LocalModel(str(tiny_model), device="cpu")
    rows = make_rows(6)
    fill = "why "
    while len(model.encode(make_messages(replace(rows[1], question=fill)))) < 505:
        fill += "why "
    rows[1] = replace(rows[1], question=fill)
    summary = answers.run(rows, max_new_tokens=200)
    line = answers.lines[1]
    assert 500 < line["prompt_tokens"] < 512
    assert line["finish"] == "stop" or line["prompt_tokens"] + line["new_tokens"] == 512
    assert summary.capped == 1
    answers.run(rows, max_new_tokens=200, batch_size=1, overwrite=True)
    assert answers.lines[1] == line


@given(
    lengths=st.lists(st.integers(1, 99), min_size=1, max_size=40),
    max_new_tokens=st.integers(1, 120),
    batch_size=st.integers(1, 9),
    batch_tokens=st.integers(1, 999),
)
def test_a_plan_holds_every_row_once_within_its_room(
    lengths: list[int], max_new_tokens: int, batch_size: int, batch_tokens: int
) -> None:
    from rolellm.models.prefix_generation import BatchLimits

    room = [min(max_new_tokens, 100 - length) for length in lengths]
    plan = plan_batches(lengths, room, BatchLimits(batch_size, batch_tokens))
    assert Counter(place for places, _ in plan for place in places) == Counter(range(len(lengths)))
    for places, limit in plan:
        assert len(places) <= batch_size
        tokens = sum(max(lengths[place] for place in places) + limit for _ in places)
        assert len(places) == 1 or tokens <= batch_tokens
        assert {room[place] for place in places} == {limit}


def test_a_tokenizer_larger_than_the_model_is_refused(answers: Answers, model_copy: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_copy)
    tokenizer.add_tokens(["lighthouse"])
    tokenizer.save_pretrained(model_copy)
    with pytest.raises(ModelError, match=r"3 of 6 prompts have tokens .* row-000 .*token \d+"):
        answers.run(6, model=str(model_copy))


# --- stopping, and choosing rows


def test_an_interruption_says_what_is_kept_and_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "p.jsonl"
    out.write_text('{"id": "b"}\n{"id": "c"}\n{"id"')
    with pytest.raises(StoppedShortError, match="2 predictions are kept") as stop, explain_interrupt(out, "go on"):
        raise KeyboardInterrupt
    assert stop.value.resume == "go on"


@given(st.integers(1, 60), st.integers(1, 60), st.randoms(use_true_random=False))
def test_a_limit_is_even_over_roles_and_subsets_and_a_larger_one_keeps_it(
    a: int, b: int, chance: random.Random
) -> None:
    subsets: dict[Subset, int] = {"general": 40, "role_specific": 10}
    rows = [
        Row(f"{role}-{subset}-{number}", role, "en", subset, f"{number}?", ("Aye.",))
        for subset, most in subsets.items()
        for role in ("Ada", "Brom", "Cal")
        for number in range(most)
    ]
    small, large = ([rows[index] for index in draw_rows(rows, limit)] for limit in sorted((a, b)))
    chance.shuffle(rows)
    assert set(large) == {rows[index] for index in draw_rows(rows, max(a, b))}
    assert len(small) == min(a, b) and set(small) <= set(large)
    roles = [Counter(row.role for row in small if row.subset == subset) for subset in subsets]
    for counts in (Counter(row.subset for row in small), *filter(None, roles)):
        assert max(counts.values()) - min(counts.values()) < 2


def test_rows_are_chosen_by_role_subset_and_number(make_rows: MakeRows) -> None:
    columns = [asdict(row) for row in make_rows(12)]
    assert len({(row.role, row.subset) for row in read_dataset_rows(columns, limit=2)}) == 2
    assert {row.role for row in read_dataset_rows(columns, ["Old Brom"])} == {"Old Brom"}
    (row,) = read_dataset_rows(columns, ["Ada Fenn"], "role_specific", 1)
    assert (row.role, row.subset) == ("Ada Fenn", "role_specific")
    with pytest.raises(SettingsError, match=r"no role 'Ada Fen' .* nearest: Ada Fenn"):
        read_dataset_rows(columns, ["Ada Fen"])
    with pytest.raises(DataError, match="no row of 1 matches"):
        read_dataset_rows(columns[:1], subset="general")
    with pytest.raises(SettingsError, match="lacks the columns question, references; it has: role, description"):
        read_dataset_rows([{"role": "a", "description": "b"}])


# --- the form


RETRIEVAL = Recipe(prompt=PromptRecipe(profile="retrieval", retrieved=3))


@pytest.fixture
def make_source(tmp_path: Path) -> Any:
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
def test_a_model_is_asked_as_it_was_tuned(make_source: Any, base: Any, adapter: Any, expected: Any) -> None:
    assert form(make_source(base, adapter)) == expected


def test_what_the_user_asks_for_wins(make_source: Any) -> None:
    tuned = make_source(manifest(RETRIEVAL))
    assert form(replace(tuned, base="elsewhere"), profile="retrieval") == ("retrieval", 5), "the paper's number"
    assert form(tuned, profile="description") == DESCRIPTION
    assert form(tuned, profile="retrieval") == ("retrieval", 3)
    assert form(tuned, retrieved=2) == ("retrieval", 2)


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


def test_a_server_that_gives_no_reply_is_counted_out_each_time(tmp_path: Path, make_rows: MakeRows) -> None:
    def answer(request: Request) -> str:
        return "Aye." if request.tag == first.id else ""

    first, *_ = rows = make_rows(3)
    model = LLM.of(ScriptedModel(answer, rules_hash="silent"))
    for new in (1, 0):
        with pytest.warns(RoleLLMWarning, match="2 of 3 rows have no prediction"):
            result = answer_rows(rows, tmp_path / "p.jsonl", GenerateSettings(), model)
        assert (result.rows, result.generated) == (1, new)

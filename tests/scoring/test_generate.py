from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import DataError, ModelError, PredictionError, RunInUseError, SettingsError, StoppedShortError
from rolellm.core.locks import lock_folder
from rolellm.core.records import Row
from rolellm.models.find import hash_model
from rolellm.models.local_model import Decoding, LocalModel, draw_numbers, keep_nucleus, sample_by_content
from rolellm.models.prompts.render import make_messages
from rolellm.scoring.generate import answer_rows, plan_batches
from rolellm.scoring.predictions import explain_interrupt, get_sidecar_path
from rolellm.scoring.rows import read_dataset_rows
from rolellm.scoring.settings import GenerateSettings

# peft 0.21 asks transformers 5.23 by a deprecated name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

MakeRows = Callable[..., list[Row]]
GREEDY = Decoding(max_new_tokens=24)
SAMPLED = Decoding(max_new_tokens=24, temperature=0.9, top_p=0.95, seed=3)


@pytest.fixture
def settings(tiny_model: Path) -> GenerateSettings:
    return GenerateSettings(model=str(tiny_model), **asdict(GREEDY), device="cpu", config="mine", split="test")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "predictions" / "p.jsonl"


@pytest.fixture
def model_copy(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


def run(rows: list[Row], out: Path, settings: GenerateSettings) -> dict[str, Any]:
    return answer_rows(rows, out, settings).to_dict()


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# --- decoding


@pytest.mark.parametrize(
    ("values", "named"),
    [
        pytest.param({"max_new_tokens": 0}, "max_new_tokens", id="no-room"),
        pytest.param({"temperature": -0.1}, "temperature", id="negative-temperature"),
        pytest.param({"temperature": float("nan")}, "temperature", id="nan"),
        pytest.param({"temperature": float("inf")}, "temperature", id="infinite"),
        pytest.param({"top_p": 0.0}, "top_p", id="empty-nucleus"),
        pytest.param({"top_p": 1.5}, "top_p", id="top-p-over-1"),
        pytest.param({"num_beams": 0}, "num_beams", id="no-beam"),
        pytest.param({"num_beams": 2, "temperature": 0.7}, "beam search does not sample", id="beams-that-sample"),
    ],
)
def test_decoding_out_of_range_is_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        Decoding(**values)


def test_a_greedy_description_names_nothing_that_does_not_matter() -> None:
    assert Decoding(seed=1).describe() == Decoding(seed=2, top_p=0.5).describe()
    assert Decoding(temperature=1.0, seed=1).describe() != Decoding(temperature=1.0, seed=2).describe()


def test_beams_find_likelier_replies_and_say_so(tiny_model: Path) -> None:
    import torch

    model = LocalModel(str(tiny_model), device="cpu")
    prompts = [model.encode([{"role": "user", "content": text}]) for text in ("Who are you?", "Why?", "你是谁？")]
    model.load()

    def likelihoods(decoding: Decoding) -> list[float]:
        found = []
        for prompt, reply in zip(prompts, model.generate_batch(prompts, decoding), strict=True):
            ids = model.tokenizer(reply.text, add_special_tokens=False)["input_ids"]
            with torch.inference_mode():
                logits = model._model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
            found.append(sum(float(logits[len(prompt) - 1 + at, token]) for at, token in enumerate(ids)))
        return found

    greedy, beams = Decoding(max_new_tokens=8), Decoding(max_new_tokens=8, num_beams=4)
    assert sum(likelihoods(beams)) >= sum(likelihoods(greedy))
    assert beams.describe() == {"strategy": "beam", "num_beams": 4, "max_new_tokens": 8}


def test_draws_come_from_seed_and_key_alone() -> None:
    assert draw_numbers(0, "a", 50)[:10] == draw_numbers(0, "a", 10)
    assert len({tuple(draw_numbers(seed, key, 3)) for seed in (0, 1) for key in ("a", "b")}) == 4
    assert all(0 <= number < 1 for number in draw_numbers(0, "a", 1000))


def test_choices_follow_the_distribution() -> None:
    import torch

    wanted = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])
    count = 20_000
    numbers = [draw_numbers(0, str(row), 1) for row in range(count)]
    scores = wanted.log().expand(count, -1)
    chosen = sample_by_content(numbers, 4, torch.zeros(count, 4, dtype=torch.long), scores).argmax(dim=-1)
    share = torch.bincount(chosen, minlength=5) / count
    assert share[1] == 0
    # Four standard errors of the largest share.
    assert (share - wanted).abs().max() < 4 * (0.25 / count) ** 0.5


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53], ids=["lowest", "rounds-to-1"])
def test_a_draw_at_either_end_takes_a_possible_token(number: float) -> None:
    import torch

    scores = torch.tensor([[-torch.inf, 1.0, 0.0, -torch.inf]])
    chosen = sample_by_content([[number]], 0, torch.zeros(1, 0), scores)
    assert chosen.argmax().item() == (1 if number == 0 else 2)


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("top_p", [1e-6, 0.5, 0.95])
def test_the_nucleus_is_that_of_transformers(top_p: float, spread: float) -> None:
    import torch
    from transformers.generation import TopPLogitsWarper

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(20, 3000, generator=generator) * spread
    scores[0, 5:] = -torch.inf
    ids = torch.zeros(20, 0, dtype=torch.long)
    assert torch.equal(keep_nucleus(top_p, ids, scores), TopPLogitsWarper(top_p)(ids, scores))


# --- the model


def reference_replies(model: LocalModel, folder: Path, rows: list[Row], tokens: int) -> list[list[int]]:
    """What transformers itself answers to each prompt alone, without padding."""
    import torch
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(folder)
    replies = []
    for row in rows:
        ids = torch.tensor([model.encode(make_messages(row))])
        output = plain.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
        replies.append(output[0, ids.shape[1] :].tolist())
    return replies


def test_a_batch_answers_as_transformers_answers_each_prompt_alone(tiny_model: Path, make_rows: MakeRows) -> None:
    rows = make_rows(10)
    model = LocalModel(str(tiny_model), device="cpu")
    replies = model.generate_batch([model.encode(make_messages(row)) for row in rows], GREEDY)
    expected = reference_replies(model, tiny_model, rows, GREEDY.max_new_tokens)
    decode = model.tokenizer.decode
    assert [reply.text for reply in replies] == [decode(ids, skip_special_tokens=True).strip() for ids in expected]
    assert [reply.new_tokens for reply in replies] == [len(ids) for ids in expected]
    ended = [ids[-1] == model.tokenizer.eos_token_id for ids in expected]
    assert [reply.finish == "stop" for reply in replies] == ended
    assert any(ended), "the fixture should end some replies"
    assert not all(ended), "the fixture should cut some replies off"


@pytest.mark.parametrize("decoding", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_reply_does_not_hang_on_its_neighbours(tiny_model: Path, make_rows: MakeRows, decoding: Decoding) -> None:
    rows = make_rows(10)
    model = LocalModel(str(tiny_model), device="cpu")
    prompts = [model.encode(make_messages(row)) for row in rows]
    keys = [row.id for row in rows]
    together = model.generate_batch(prompts, decoding, keys)
    alone = [model.generate_batch([prompt], decoding, [key])[0] for prompt, key in zip(prompts, keys, strict=True)]
    assert together == alone


def test_sampling_differs_by_seed_and_by_row(tiny_model: Path, make_rows: MakeRows) -> None:
    model = LocalModel(str(tiny_model), device="cpu")
    prompt = model.encode(make_messages(make_rows(1)[0]))
    replies = model.generate_batch([prompt] * 4, SAMPLED, ["a", "b", "c", "a"])
    assert len({reply.text for reply in replies[:3]}) == 3
    assert replies[0] == replies[3]
    assert model.generate_batch([prompt], replace(SAMPLED, seed=4), ["a"])[0] != replies[0]


def test_the_checkpoints_own_decoding_defaults_do_not_leak_in(tiny_model: Path, model_copy: Path) -> None:
    edit_json(model_copy / "generation_config.json", repetition_penalty=5.0, temperature=0.2, do_sample=True, top_k=3)
    prompts = [list(range(5, 40))]
    plain, loaded = (LocalModel(str(folder), device="cpu") for folder in (tiny_model, model_copy))
    assert loaded.generate_batch(prompts, GREEDY) == plain.generate_batch(prompts, GREEDY)


def test_the_checkpoints_own_end_tokens_count(tiny_model: Path, model_copy: Path) -> None:
    model = LocalModel(str(tiny_model), device="cpu")
    prompt = list(range(5, 40))
    before = model.generate_batch([prompt], GREEDY)[0]
    (first,) = reference_tokens(tiny_model, prompt, 1)
    edit_json(model_copy / "generation_config.json", eos_token_id=[1, first])
    after = LocalModel(str(model_copy), device="cpu").generate_batch([prompt], GREEDY)[0]
    assert (before.new_tokens > 1, after.new_tokens, after.finish, after.text) == (True, 1, "stop", "")


def reference_tokens(folder: Path, prompt: list[int], count: int) -> list[int]:
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([prompt])
    plain = AutoModelForCausalLM.from_pretrained(folder)
    output = plain.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    new: list[int] = output[0, ids.shape[1] :].tolist()
    return new


def test_special_tokens_in_a_question_stay_text(tiny_model: Path, make_rows: MakeRows) -> None:
    model = LocalModel(str(tiny_model), device="cpu")
    end = model.tokenizer.eos_token_id
    row = make_rows(1)[0]
    plain, hostile = (model.encode(make_messages(replace(row, question=text))) for text in ("Hello", "</s> Hello"))
    assert hostile.count(end) == plain.count(end)


def test_half_precision_answers_too(tiny_model: Path) -> None:
    model = LocalModel(str(tiny_model), device="cpu", dtype="bfloat16")
    assert model.generate_batch([[5, 6, 7], [5]], GREEDY)[0].new_tokens > 0
    assert model.dtype == "bfloat16"


# --- models that are not there, or not whole


def _truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def _drop_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        pytest.param(_truncate, "its model cannot be loaded", id="truncated-weights"),
        pytest.param(_drop_weight, "lacks 1 of the model's weights .*up_proj", id="missing-weight"),
        pytest.param(_no_tokenizer, "its tokenizer cannot be loaded", id="no-tokenizer"),
        pytest.param(lambda at: (at / "config.json").unlink(), "holds no model: neither", id="no-config"),
        pytest.param(
            lambda at: (at / "config.json").write_text("{"), "its config cannot be loaded", id="broken-config"
        ),
        pytest.param(lambda at: edit_json(at / "config.json", model_type="t5"), "cannot be loaded", id="not-causal"),
        pytest.param(lambda at: (at / "model.safetensors").unlink(), "holds no weights", id="no-weights"),
        pytest.param(
            lambda at: edit_json(at / "config.json", hidden_size=64), "its model cannot be loaded", id="other-shape"
        ),
        pytest.param(lambda at: (at / "adapter_config.json").write_text("{"), "not valid JSON", id="broken-adapter"),
    ],
)
def test_a_broken_checkpoint_is_refused_and_nothing_is_written(
    model_copy: Path, out: Path, make_rows: MakeRows, spoil: Callable[[Path], object], named: str
) -> None:
    spoil(model_copy)
    with pytest.raises(ModelError, match=named):
        run(make_rows(2), out, GenerateSettings(model=str(model_copy), device="cpu"))
    assert not out.exists()
    assert not get_sidecar_path(out).exists()


@pytest.mark.parametrize(
    ("name", "named"),
    [
        pytest.param("{tmp}/nowhere", "no such directory", id="absolute"),
        pytest.param("./nowhere", "no such directory", id="relative"),
        pytest.param("a/b/c", "no such directory", id="too-deep-for-the-hub"),
        pytest.param("runs/nowhere", "no such directory", id="beside-a-real-one"),
        pytest.param("", "no such directory", id="empty"),
        pytest.param("file.txt", "is a file", id="file"),
        pytest.param("runs", "holds no model", id="empty-directory"),
        pytest.param("someone/some-model", "the Hub|cannot be loaded", id="hub-id-offline"),
    ],
)
def test_a_model_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, named: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").touch()
    (tmp_path / "runs").mkdir()
    with pytest.raises(ModelError, match=named):
        LocalModel(name.format(tmp=tmp_path))


def test_a_model_is_named_by_content_and_not_by_place(tiny_model: Path, model_copy: Path) -> None:
    assert hash_model(str(model_copy)) == hash_model(str(tiny_model))
    (model_copy / "metrics.jsonl").write_text("{}")
    assert hash_model(str(model_copy)) == hash_model(str(tiny_model))
    weights = bytearray((model_copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model_copy / "model.safetensors").write_bytes(weights)
    assert hash_model(str(model_copy)) != hash_model(str(tiny_model))


def test_a_large_file_is_hashed_by_samples_up_to_its_end(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    with weights.open("wb") as stream:
        stream.truncate(80 * 2**20)
    before = hash_model(str(tmp_path))
    with weights.open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"x")
    assert hash_model(str(tmp_path)) != before


# --- adapters


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path) -> Path:
    """A LoRA adapter with random weights, so that it changes what the base says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        model = get_peft_model(base, config)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_finds_its_base_and_changes_the_answers(tiny_model: Path, adapter: Path, out: Path) -> None:
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


def test_an_adapter_answers_as_its_merged_model_does(
    tiny_model: Path, adapter: Path, tmp_path: Path, make_rows: MakeRows
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), adapter).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    for path in tiny_model.glob("tokenizer*"):
        shutil.copy(path, tmp_path / "merged")
    rows = make_rows(6)
    replies = []
    for folder in (adapter, tmp_path / "merged"):
        model = LocalModel(str(folder), device="cpu")
        replies.append(model.generate_batch([model.encode(make_messages(row)) for row in rows], GREEDY))
    assert replies[0] == replies[1]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        pytest.param(
            lambda at: edit_json(at / "adapter_config.json", base_model_name_or_path="./gone"),
            "tuned on ./gone, which cannot be used .*--model BASE --adapter",
            id="base-gone",
        ),
        pytest.param(
            lambda at: edit_json(at / "adapter_config.json", base_model_name_or_path=None),
            "does not say which base",
            id="no-base",
        ),
        pytest.param(
            lambda at: edit_json(at / "adapter_config.json", target_modules=["nothing"]),
            "does not fit its base model",
            id="other-modules",
        ),
        pytest.param(
            lambda at: edit_json(at / "adapter_config.json", target_modules=["q_proj", "v_proj", "o_proj"]),
            "does not fit its base model.*missing adapter keys",
            id="weights-missing",
        ),
        pytest.param(lambda at: (at / "adapter_model.safetensors").unlink(), "holds no weights|does not go", id="none"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    adapter: Path, out: Path, make_rows: MakeRows, spoil: Callable[[Path], object], named: str
) -> None:
    spoil(adapter)
    with pytest.raises(ModelError, match=named):
        run(make_rows(2), out, GenerateSettings(model=str(adapter), device="cpu"))
    assert not out.exists()


def test_adapters_do_not_stack(tiny_model: Path, adapter: Path) -> None:
    with pytest.raises(ModelError, match="is itself an adapter"):
        LocalModel(str(adapter), adapter=str(adapter))
    with pytest.raises(ModelError, match="is not an adapter"):
        LocalModel(str(tiny_model), adapter=str(tiny_model))


def test_an_adapters_base_may_lie_beside_it(adapter: Path, tiny_model: Path) -> None:
    shutil.copytree(tiny_model, adapter / "base")
    edit_json(adapter / "adapter_config.json", base_model_name_or_path="base")
    assert LocalModel(str(adapter)).source.base == str(adapter / "base")


# --- the file and its sidecar


def test_each_row_gets_one_line_in_order(out: Path, settings: GenerateSettings, make_rows: MakeRows) -> None:
    rows = make_rows(11)
    summary = run(rows, out, settings)
    written = lines(out)
    assert [line["id"] for line in written] == [row.id for row in rows]
    assert [line["question"] for line in written] == [row.question for row in rows]
    expected_keys = ["id", "role", "question", "prediction", "finish", "prompt_tokens", "new_tokens"]
    assert all(list(line) == expected_keys for line in written)
    assert summary["rows"] == summary["generated"] == 11
    assert summary["stop"] == sum(line["finish"] == "stop" for line in written)
    assert summary["new_tokens"] == sum(line["new_tokens"] for line in written)
    assert summary["tokens_per_second"] > 0
    assert [path.name for path in out.parent.iterdir() if path not in (out, get_sidecar_path(out))] == []


def test_the_sidecar_says_how_the_file_was_made(
    out: Path, settings: GenerateSettings, make_rows: MakeRows, tiny_model: Path
) -> None:
    run(make_rows(2), out, replace(settings, **asdict(SAMPLED), dataset_fingerprint="abc"))
    meta = json.loads(get_sidecar_path(out).read_text())
    assert meta["model"] == str(tiny_model)
    assert meta["model_hash"] == hash_model(str(tiny_model))
    assert (meta["config"], meta["split"], meta["dataset_fingerprint"]) == ("mine", "test", "abc")
    assert meta["prompt"]["form"] == "rolellama"
    assert set(meta["prompt"]["template_hash"]) == {"en", "zh"}
    assert meta["decoding"] == SAMPLED.describe()
    assert set(meta["versions"]) == {"rolellm", "torch", "transformers"}


@pytest.mark.parametrize("decoding", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_batch_size_and_order_of_rows_change_nothing(
    out: Path, settings: GenerateSettings, make_rows: MakeRows, decoding: Decoding
) -> None:
    rows = make_rows(13)
    settings = replace(settings, **asdict(decoding), overwrite=True)
    run(rows, out, settings)
    first = out.read_bytes()
    for batch_size in (1, 3, 64):
        run(rows, out, replace(settings, batch_size=batch_size))
        assert out.read_bytes() == first
    run(rows[::-1], out, settings)
    assert b"".join(reversed(first.splitlines(keepends=True))) == out.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("decoding", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("kept", "torn"),
    [
        pytest.param(0, b'{"id": "ro', id="torn-at-once"),
        pytest.param(4, b"", id="after-a-batch"),
        pytest.param(5, b'{"id": "row-0', id="torn-within-a-batch"),
        pytest.param(6, None, id="whole-line-without-its-end"),
        pytest.param(11, b"\xe4\xb8", id="torn-within-a-character"),
    ],
)
def test_a_run_that_was_cut_off_ends_as_if_it_had_not_been(
    out: Path, settings: GenerateSettings, make_rows: MakeRows, decoding: Decoding, kept: int, torn: bytes | None
) -> None:
    rows = make_rows(12)
    settings = replace(settings, **asdict(decoding), batch_size=4)
    run(rows, out, settings)
    whole = out.read_bytes()
    parts = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(parts[:kept]) + (parts[kept].rstrip(b"\n") if torn is None else torn))
    summary = run(rows, out, settings)
    assert out.read_bytes() == whole
    assert summary["generated"] == 12 - kept
    assert summary["new_tokens"] == sum(line["new_tokens"] for line in lines(out)[kept:])


def test_a_finished_run_does_nothing_more(
    model_copy: Path, out: Path, settings: GenerateSettings, make_rows: MakeRows
) -> None:
    settings = replace(settings, model=str(model_copy))
    run(make_rows(4), out, settings)
    before = out.read_bytes(), get_sidecar_path(out).read_bytes()
    summary = run(make_rows(4), out, replace(settings, batch_size=2))
    assert (summary["generated"], summary["tokens_per_second"]) == (0, None)
    assert (out.read_bytes(), get_sidecar_path(out).read_bytes()) == before


def test_a_run_can_go_on_over_more_rows(out: Path, settings: GenerateSettings, make_rows: MakeRows) -> None:
    rows = make_rows(10)
    run(rows[:4], out, settings)
    assert run(rows, out, settings)["generated"] == 6
    grown = out.read_bytes()
    run(rows, out, replace(settings, overwrite=True))
    assert out.read_bytes() == grown


def test_another_batch_size_may_go_on_and_is_noted(out: Path, settings: GenerateSettings, make_rows: MakeRows) -> None:
    rows = make_rows(6)
    run(rows[:3], out, settings)
    run(rows, out, replace(settings, batch_size=2))
    meta = json.loads(get_sidecar_path(out).read_text())
    assert meta["batch_size"] == 2
    assert [earlier["batch_size"] for earlier in meta["earlier_runs"]] == [64]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"max_new_tokens": 9}, "max_new_tokens was 24 and is now 9", id="tokens"),
        pytest.param(asdict(SAMPLED), 'strategy was "greedy" and is now "sample"', id="strategy"),
        pytest.param({"dtype": "bfloat16"}, 'dtype was "float32" and is now "bfloat16"', id="dtype"),
        pytest.param({"config": "other"}, 'config was "mine" and is now "other"', id="config"),
        pytest.param({"split": "train"}, "split was", id="split"),
        pytest.param({"dataset_fingerprint": "f" * 64}, "dataset_fingerprint was null", id="dataset"),
        pytest.param({"system_template": "mine.txt"}, "template_hash.en was", id="system-template"),
        pytest.param({"model": "copy"}, "model_hash was", id="model"),
    ],
)
def test_going_on_with_other_settings_is_refused(
    out: Path,
    settings: GenerateSettings,
    make_rows: MakeRows,
    model_copy: Path,
    tmp_path: Path,
    change: dict[str, Any],
    named: str,
) -> None:
    edit_json(model_copy / "config.json", rms_norm_eps=0.1)
    (tmp_path / "mine.txt").write_text("Be {role}.")
    if "model" in change:
        change = {"model": str(model_copy)}
    if "system_template" in change:
        change = {"system_template": tmp_path / "mine.txt"}
    run(make_rows(4), out, settings)
    before = out.read_bytes(), get_sidecar_path(out).read_bytes()
    with pytest.raises(SettingsError, match=named):
        run(make_rows(6), out, replace(settings, **change))
    assert (out.read_bytes(), get_sidecar_path(out).read_bytes()) == before
    assert run(make_rows(6), out, replace(settings, **change, overwrite=True))["generated"] == 6


def test_a_model_that_moved_may_go_on(
    out: Path, settings: GenerateSettings, make_rows: MakeRows, model_copy: Path
) -> None:
    run(make_rows(4), out, settings)
    assert run(make_rows(6), out, replace(settings, model=str(model_copy)))["generated"] == 2


@pytest.mark.parametrize(
    ("sidecar", "named"),
    [
        pytest.param(None, "how it was made is unknown", id="gone"),
        pytest.param("{", "not valid JSON", id="broken"),
        pytest.param("[]", "expected a JSON object", id="a-list"),
    ],
)
def test_a_file_of_unknown_making_is_left_alone(
    out: Path, settings: GenerateSettings, make_rows: MakeRows, sidecar: str | None, named: str
) -> None:
    run(make_rows(2), out, settings)
    if sidecar is None:
        get_sidecar_path(out).unlink()
    else:
        get_sidecar_path(out).write_text(sidecar)
    before = out.read_bytes()
    with pytest.raises(SettingsError, match=named):
        run(make_rows(2), out, settings)
    assert out.read_bytes() == before


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
    out: Path,
    settings: GenerateSettings,
    make_rows: MakeRows,
    spoil: Callable[[str], str],
    error: type[Exception],
    named: str,
) -> None:
    run(make_rows(3), out, settings)
    out.write_text(spoil(out.read_text()))
    before = out.read_bytes()
    with pytest.raises(error, match=named):
        run(make_rows(3), out, settings)
    assert out.read_bytes() == before


def test_overwriting_leaves_nothing_of_what_was_there(
    out: Path, settings: GenerateSettings, make_rows: MakeRows
) -> None:
    run(make_rows(5), out, settings)
    run(make_rows(2), out, replace(settings, **asdict(SAMPLED), overwrite=True))
    assert [line["id"] for line in lines(out)] == ["row-000", "row-001"]
    assert json.loads(get_sidecar_path(out).read_text())["decoding"] == SAMPLED.describe()


def test_overwriting_with_a_broken_model_keeps_what_was_there(
    out: Path, settings: GenerateSettings, make_rows: MakeRows, model_copy: Path
) -> None:
    run(make_rows(3), out, settings)
    before = out.read_bytes(), get_sidecar_path(out).read_bytes()
    _truncate(model_copy)
    with pytest.raises(ModelError):
        run(make_rows(3), out, replace(settings, model=str(model_copy), overwrite=True))
    assert (out.read_bytes(), get_sidecar_path(out).read_bytes()) == before


def test_a_second_writer_is_refused(out: Path, settings: GenerateSettings, make_rows: MakeRows) -> None:
    with lock_folder(out.parent, ".p.jsonl.lock"), pytest.raises(RunInUseError, match="in use by another run"):
        run(make_rows(2), out, settings)
    assert run(make_rows(2), out, settings)["generated"] == 2


def test_rows_and_places_that_cannot_be_are_refused(out: Path, settings: GenerateSettings, make_rows: MakeRows) -> None:
    with pytest.raises(DataError, match="no rows"):
        run([], out, settings)
    with pytest.raises(DataError, match="more than one row: row-000"):
        run([*make_rows(2), *make_rows(1)], out, settings)
    with pytest.raises(SettingsError, match="is a directory"):
        run(make_rows(1), out.parent.parent, settings)
    with pytest.raises(SettingsError, match="no system template"):
        run(make_rows(1), out, replace(settings, system_template=Path("nowhere.txt")))
    with pytest.raises(SettingsError, match="batch_size"):
        replace(settings, batch_size=0)


# --- the context


def test_prompts_that_fill_the_context_are_refused_by_name(
    out: Path, settings: GenerateSettings, make_rows: MakeRows
) -> None:
    rows = [
        replace(row, question="What? " * 400) if number in (1, 3) else row for number, row in enumerate(make_rows(5))
    ]
    with pytest.raises(ModelError, match=r"2 of 5 prompts .* 512 tokens: row-001 \(Old Brom, \d+ tokens\), row-003"):
        run(rows, out, settings)
    assert not out.exists()
    assert not get_sidecar_path(out).exists()


def test_a_prompt_that_leaves_little_room_gets_what_is_left(
    out: Path, settings: GenerateSettings, make_rows: MakeRows, tiny_model: Path
) -> None:
    model = LocalModel(str(tiny_model), device="cpu")
    rows = make_rows(6)
    fill = "why "
    while len(model.encode(make_messages(replace(rows[1], question=fill)))) < 505:
        fill += "why "
    rows[1] = replace(rows[1], question=fill)
    summary = run(rows, out, replace(settings, max_new_tokens=200))
    line = lines(out)[1]
    assert 500 < line["prompt_tokens"] < 512
    assert line["finish"] == "stop" or line["prompt_tokens"] + line["new_tokens"] == 512
    assert summary["capped"] == 1
    run(rows, out, replace(settings, max_new_tokens=200, batch_size=1, overwrite=True))
    assert lines(out)[1] == line


@given(
    lengths=st.lists(st.integers(1, 99), min_size=1, max_size=40),
    max_new_tokens=st.integers(1, 120),
    batch_size=st.integers(1, 9),
)
def test_a_plan_holds_every_row_once_within_its_room(lengths: list[int], max_new_tokens: int, batch_size: int) -> None:
    rows = [Row(str(n), "r", "en", "general", "q", ("a",)) for n in range(len(lengths))]
    plan = plan_batches(rows, lengths, 100, max_new_tokens=max_new_tokens, batch_size=batch_size)
    assert Counter(place for batch in plan for place in batch.rows) == Counter(range(len(rows)))
    for batch in plan:
        assert len(batch.rows) <= batch_size
        assert {min(max_new_tokens, 100 - lengths[place]) for place in batch.rows} == {batch.max_new_tokens}


def test_a_prompt_has_to_leave_room_for_one_token() -> None:
    rows = [Row("a", "r", "en", "general", "q", ("x",))]
    assert plan_batches(rows, [99], 100, max_new_tokens=5, batch_size=1)[0].max_new_tokens == 1
    assert plan_batches(rows, [100], None, max_new_tokens=5, batch_size=1)[0].max_new_tokens == 5
    with pytest.raises(ModelError, match="leave no room"):
        plan_batches(rows, [100], 100, max_new_tokens=5, batch_size=1)


def test_a_tokenizer_larger_than_the_model_is_refused(
    out: Path, settings: GenerateSettings, make_rows: MakeRows, model_copy: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_copy)
    tokenizer.add_tokens(["lighthouse"])
    tokenizer.save_pretrained(model_copy)
    with pytest.raises(ModelError, match=r"3 of 6 prompts have tokens .* row-000 .*token \d+"):
        run(make_rows(6), out, replace(settings, model=str(model_copy)))


# --- stopping, and choosing rows


def test_an_interruption_says_what_is_kept_and_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "p.jsonl"
    out.write_text('{"id": "a"}\n{"id": "b"}\n{"id"')
    with pytest.raises(StoppedShortError, match="2 predictions are kept") as stop, explain_interrupt(out, "go on"):
        raise KeyboardInterrupt
    assert stop.value.resume == "go on"


def test_an_interruption_before_overwriting_begins_says_so(tmp_path: Path) -> None:
    out = tmp_path / "p.jsonl"
    out.write_text('{"id": "a"}\n')
    with (
        pytest.raises(StoppedShortError, match="is unchanged") as stop,
        explain_interrupt(out, "go on", untouched="again"),
    ):
        raise KeyboardInterrupt
    assert stop.value.resume == "again"
    with (
        pytest.raises(StoppedShortError, match="1 predictions") as stop,
        explain_interrupt(out, "go on", untouched="again"),
    ):
        out.unlink()
        out.write_text('{"id": "b"}\n')
        raise KeyboardInterrupt
    assert stop.value.resume == "go on"


def test_rows_are_chosen_by_role_subset_and_number(make_rows: MakeRows) -> None:
    columns = [
        {name: getattr(row, name) for name in ("id", "role", "language", "subset", "question", "references")}
        for row in make_rows(12)
    ]
    assert [row.id for row in read_dataset_rows(columns, limit=2)] == ["row-000", "row-001"]
    assert {row.role for row in read_dataset_rows(columns, ["Old Brom"])} == {"Old Brom"}
    assert [row.id for row in read_dataset_rows(columns, ["Ada Fenn"], "role_specific", 1)] == ["row-000"]
    with pytest.raises(SettingsError, match=r"no role 'Ada Fen' .* nearest: Ada Fenn"):
        read_dataset_rows(columns, ["Ada Fen"])
    with pytest.raises(DataError, match="no row of 1 matches"):
        read_dataset_rows(columns[:1], subset="general")
    with pytest.raises(SettingsError, match="lacks the columns question, references; it has: role, description"):
        read_dataset_rows([{"role": "a", "description": "b"}])

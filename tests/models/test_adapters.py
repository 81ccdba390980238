"""Replies of several adapters on one base."""

import json
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import ModelError
from rolellm.models.adapters import PLAIN, AdapterModel
from rolellm.models.local_model import Completion, Decoding, Draft, LocalModel

# PEFT 0.19 warns of an output layer that is tied to the embeddings.
pytestmark = pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings:UserWarning")


def make_adapter(base: Path, folder: Path, seed: int, **options: Any) -> str:
    import torch
    from peft import LoraConfig, get_peft_model

    from rolellm.models.load import load_whole, open_tokenizer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "v_proj"], init_lora_weights=False, **options)
        tuned = get_peft_model(load_whole(base), config)
    tuned.save_pretrained(folder)
    open_tokenizer(base).save_pretrained(folder)
    return str(folder)


def test_a_mixed_batch_gives_each_the_reply_that_it_gets_alone(tiny_model: Path, tmp_path: Path) -> None:
    model = AdapterModel(str(tiny_model))
    adapters = {name: make_adapter(tiny_model, tmp_path / name, seed) for seed, name in enumerate(("ada", "Mr. Fox"))}
    for name, adapter in adapters.items():
        model.add(name, adapter)
    calls = [(PLAIN, 0.0), ("ada", 0.0), ("Mr. Fox", 0.9), ("ada", 0.9), ("Mr. Fox", 0.0)]

    def complete(indices: list[int]) -> list[tuple[str, Completion]]:
        replies = []
        drafts = []
        for index in indices:
            name, temperature = calls[index]
            events: list[Any] = []
            form = model.forms[name]
            prompt = form.encode([{"role": "user", "content": "Who asks? " * (index + 1)}])
            decoding = Decoding(max_new_tokens=6 + index, temperature=temperature, seed=index)
            drafts.append(Draft(form, prompt, decoding, events.append, index % 2 == 0, adapter=name))
            replies.append(events)
        model.complete(drafts)
        return [("".join(events[:-1]), events[-1]) for events in replies]

    mixed = complete([0, 1, 2, 3, 4])
    assert [pieces for pieces, _ in mixed] == [reply.text * (index % 2 == 0) for index, (_, reply) in enumerate(mixed)]
    assert mixed == [complete([index])[0] for index in range(5)]
    # The base and each adapter speak as they do by themselves.
    for index, adapter in ((0, None), (1, adapters["ada"]), (4, adapters["Mr. Fox"])):
        alone = LocalModel(str(tiny_model), adapter=adapter)
        prompt = alone.encode([{"role": "user", "content": "Who asks? " * (index + 1)}])
        (reply,) = alone.generate_batch([prompt], Decoding(max_new_tokens=6 + index))
        assert mixed[index][1].text.strip() == reply.text
    model.remove("ada")
    assert complete([0, 2]) == [mixed[0], mixed[2]]
    model.remove("Mr. Fox")
    assert complete([0]) == [mixed[0]]


def test_what_is_no_adapter_for_the_base_leaves_it_as_it_was(tiny_model: Path, tmp_path: Path) -> None:
    model = AdapterModel(str(tiny_model))
    dora = make_adapter(tiny_model, tmp_path / "dora", 0, use_dora=True)
    model.add("dora", dora)
    draft = Draft(model.forms["dora"], [1], Decoding(), print, adapter="dora")
    assert model.find_group(draft) == "dora"
    with pytest.raises(ModelError, match="is not an adapter"):
        model.add("eve", str(tiny_model))
    elsewhere = tmp_path / "dora" / "adapter_config.json"
    config = json.loads(elsewhere.read_text())
    sample = Path(__file__).parents[2] / "src/rolellm/models/sample"
    elsewhere.write_text(json.dumps({**config, "base_model_name_or_path": str(sample)}))
    with pytest.raises(ModelError, match=r"was tuned on .*sample, not on"):
        model.add("eve", dora)
    elsewhere.write_text(json.dumps({**config, "r": 9}))
    with pytest.raises(ModelError, match="cannot be put on its base"):
        model.add("eve", dora)
    model.remove("dora")
    assert [*model.forms] == [PLAIN]


def test_an_adapter_with_whole_modules_is_alone_on_its_base(tiny_model: Path, tmp_path: Path) -> None:
    plain = make_adapter(tiny_model, tmp_path / "plain", 0)
    whole = make_adapter(tiny_model, tmp_path / "whole", 1, modules_to_save=["lm_head"])
    for first, second in ((plain, whole), (whole, plain)):
        model = AdapterModel(str(tiny_model))
        model.add("first", first)
        with pytest.raises(ModelError, match="serve it alone"):
            model.add("second", second)


@pytest.mark.parametrize("options", [{"modules_to_save": ["lm_head"]}, {"trainable_token_indices": [1]}], ids=str)
def test_an_adapter_with_whole_modules_is_not_mixed_with_its_base(
    tiny_model: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    model = AdapterModel(str(tiny_model))
    model.add("whole", make_adapter(tiny_model, tmp_path / "whole", 1, **options))
    drafts = [Draft(model.forms[name], [1], Decoding(), print, adapter=name) for name in (PLAIN, "whole")]
    assert [model.find_group(draft) for draft in drafts] == ["", "whole"]


def test_an_adapter_that_fails_leaves_no_layers(tiny_model: Path, tmp_path: Path) -> None:
    model = AdapterModel(str(tiny_model))
    folder = Path(make_adapter(tiny_model, tmp_path / "ada", 0))
    config_file = folder / "adapter_config.json"
    config = json.loads(config_file.read_text())
    names = [name for name, _ in model.forms[PLAIN].weights.named_modules()]
    config_file.write_text(json.dumps({**config, "r": 9}))
    with pytest.raises(ModelError, match="cannot be put on its base"):
        model.add("ada", str(folder))
    assert [name for name, _ in model.forms[PLAIN].weights.named_modules()] == names
    config_file.write_text(json.dumps(config))
    model.add("ada", str(folder))


def test_adapters_of_a_base_share_its_tokenizer(tiny_model: Path, tmp_path: Path) -> None:
    model = AdapterModel(str(tiny_model))
    for name, template in (("ada", "{{ messages }}"), ("bob", "{{ messages }}"), ("eve", "{{ messages[0] }}")):
        adapter = Path(make_adapter(tiny_model, tmp_path / name, 0))
        (adapter / "chat_template.jinja").write_text(template, encoding="utf-8")
        model.add(name, str(adapter))
    tokenizers = {name: form.tokenizer for name, form in model.forms.items()}
    assert tokenizers["ada"] is tokenizers["bob"]
    assert len({id(tokenizer) for tokenizer in tokenizers.values()}) == 3

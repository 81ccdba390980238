"""Sharing what prompts begin with: in every family that does it, replies are those of one prompt after the other."""

import random
import resource
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig

from rolellm.core.errors import ModelError, RoleLLMWarning
from rolellm.models.families import EXACT
from rolellm.models.local_model import Decoding, LocalModel
from rolellm.models.prefix_generation import BatchLimits, SharedGeneration, fit_batches, group_prompts

from ..training import test_families as families
from ..training.models import new_model

VOCABULARY = 100
END = 2


def random_prompts() -> list[list[int]]:
    """Three questions each of three roles with a long beginning, and one prompt alone."""
    chance = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(3, VOCABULARY) for _ in range(count)]

    asked = [[*head, *tokens(chance.randint(2, 7))] for head in (tokens(20), tokens(24), tokens(9)) for _ in range(3)]
    return [*asked, tokens(11)]


def shared_lengths(prompts: Sequence[Sequence[int]]) -> list[int]:
    lengths = {place: length for length, places in group_prompts(prompts) for place in places}
    return [lengths[place] for place in range(len(prompts))]


def alone(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """What transformers itself answers to one prompt."""
    import torch
    from transformers import GenerationConfig

    config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=END, pad_token_id=0)
    ids = torch.tensor([prompt])
    output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
    reply: list[int] = output[0, len(prompt) :].tolist()
    return reply


def together(model: Any, prompts: list[list[int]], shared: list[int], tokens: int) -> list[list[int]]:
    engine = SharedGeneration(model, "cpu")
    return engine.replies(prompts, shared, limit=tokens, stops=[END], choose=lambda logits, *_: logits.argmax(-1))


EACH_FAMILY = pytest.mark.parametrize(
    ("family", "sizes"),
    [
        pytest.param(*case.values, id=case.id, marks=families.NEEDS_CAPS if case.id == "gemma2" else ())
        for case in families.EXACT
    ],
)


@EACH_FAMILY
def test_replies_are_token_for_token_those_of_generate_one_by_one(family: str, sizes: dict[str, Any]) -> None:
    model = new_model(family, VOCABULARY, **sizes).eval()
    before = model.config._attn_implementation
    prompts = random_prompts()
    shared = shared_lengths(prompts)
    assert sorted(set(shared)) == [0, 9, 20, 24]
    made = together(model, prompts, shared, 16)
    assert made == [alone(model, prompt, 16) for prompt in prompts]
    assert model.config._attn_implementation == before


@EACH_FAMILY
def test_the_next_turn_of_a_talk_reads_only_what_is_new(family: str, sizes: dict[str, Any]) -> None:
    model = new_model(family, VOCABULARY, **sizes).eval()
    engine = SharedGeneration(model, "cpu")

    def answer(prompt: list[int]) -> list[int]:
        (reply,) = engine.replies([prompt], [0], limit=12, stops=[END], choose=lambda logits, *_: logits.argmax(-1))
        assert reply == alone(model, prompt, 12)
        return reply

    talks = [list(range(5, 25)), list(range(30, 45))]
    read = [0, 0]
    for _ in range(3):
        for number, talk in enumerate(talks):
            reply = answer(talk)
            assert engine.reused == read[number]
            read[number] = len(talk) + len(reply) - 1
            talk += [*reply, 7, 8, 9]
    # Another turn in the place of the last one.
    answer([*talks[0][:-3], 11, 12])
    assert engine.reused == read[0]


def test_all_families_that_share_are_tested() -> None:
    tested = {new_model(case.values[0], VOCABULARY, **case.values[1]).config.model_type for case in families.EXACT}
    assert tested == set(EXACT)


def test_samples_of_one_question_share_the_question(tiny_model: Path) -> None:
    model = LocalModel(str(tiny_model), device="cpu")
    # The last one begins as the first does.
    prompts = [list(range(5, 40)), list(range(15, 48)), [*range(5, 30), *range(70, 79)]]
    asked = [prompt for prompt in prompts for _ in range(5)]
    keys = [str(place) for place in range(15)]
    assert shared_lengths(asked) == [25] * 5 + [32] * 5 + [25] * 5
    sampled = Decoding(max_new_tokens=12, temperature=0.9, top_p=0.95, seed=1)
    replies = model.generate_batch(asked, sampled, keys)
    assert len({reply.text for reply in replies}) > 5
    one_by_one = [model.generate_batch([prompt], sampled, [key])[0] for prompt, key in zip(asked, keys, strict=True)]
    assert replies == one_by_one


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12))
def test_groups_hold_every_prompt_once_and_share_what_they_say(prompts: list[list[int]]) -> None:
    groups = group_prompts(prompts)
    assert sorted(place for _, places in groups for place in places) == list(range(len(prompts)))
    for length, places in groups:
        assert len({tuple(prompts[place][:length]) for place in places}) == 1
        assert all(length < len(prompts[place]) for place in places)


def save(model: Any, tokenizer_of: Path, folder: Path) -> str:
    from transformers import AutoTokenizer

    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_of).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [case.values[:2] for case in families.ROWS if case.id in ("mixtral", "mamba")],
    ids=["mixtral", "mamba"],
)
def test_other_families_say_that_they_do_not_share_and_answer_the_same(
    tiny_model: Path, tmp_path: Path, family: str, sizes: dict[str, Any]
) -> None:
    from transformers import AutoTokenizer

    count = len(AutoTokenizer.from_pretrained(tiny_model))
    model = LocalModel(save(new_model(family, count, **sizes), tiny_model, tmp_path / "model"), device="cpu")
    greedy = Decoding(max_new_tokens=8)
    with pytest.warns(RoleLLMWarning, match=f"the base is a model of type {family.lower()}"):
        replies = model.generate_batch(random_prompts(), greedy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoleLLMWarning)
        assert replies == [model.generate_batch([prompt], greedy)[0] for prompt in random_prompts()]


@pytest.mark.parametrize(
    ("sizes", "free", "rows", "tokens"),
    [
        # 32 KiB a token and 4 MB a row of the vocabulary.
        pytest.param((2048, 16, 32, 8, 64, 128_256), 135e9, 2048, 2_097_152, id="1B-on-an-H200"),
        pytest.param((4096, 32, 32, 32, 128, 32_000), 18e9, 1024, 16_384, id="7B-in-4-bits-on-24-GB"),
        pytest.param((4096, 32, 32, None, None, 32_000), 1e6, 1, 1, id="no-room"),
    ],
)
def test_a_batch_is_as_large_as_the_free_memory_allows(
    sizes: tuple[Any, ...], free: float, rows: int, tokens: int
) -> None:
    names = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"]
    config = LlamaConfig(**dict(zip(names, sizes, strict=True)))
    assert fit_batches(config, torch.bfloat16, int(free)) == BatchLimits(rows, tokens)


@contextmanager
def memory_left(size: int) -> Iterator[None]:
    """Let this process take no more than that many bytes of address space within the block."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits an address space")
def test_out_of_memory_halves_the_batch_and_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    count = len(AutoTokenizer.from_pretrained(tiny_model))
    wide = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64, "max_position_embeddings": 16_384}
    network = new_model("Llama", count, **wide)
    # Every token ends a reply: the room for a long one is taken, and it is over at once.
    network.generation_config = GenerationConfig(eos_token_id=list(range(count)))
    model = LocalModel(save(network, tiny_model, tmp_path / "model"), device="cpu")
    prompts, decoding = random_prompts()[:8], Decoding(max_new_tokens=8000)
    expected = [model.generate_batch([prompt], decoding)[0] for prompt in prompts]
    # Keys and values of a prompt take 2 layers * 2 * 16 heads * 8,000 places * 64 * 4 bytes: 131 MB.
    with memory_left(700 << 20), pytest.warns(RoleLLMWarning, match=r"of 8 prompts; going on with 4 at a time"):
        assert model.generate_batch(prompts, decoding) == expected
    with memory_left(70 << 20), pytest.raises(ModelError, match="out of memory with a single prompt"):
        model.generate_batch(prompts[:1], Decoding(max_new_tokens=16_000))

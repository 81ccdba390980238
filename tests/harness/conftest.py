"""A tiny chat model that says words of the sample's references, so that scores are not 0."""

from pathlib import Path

import pytest

from rolellm import load_rolebench
from rolellm.models.prompts.render import load_chat_template


@pytest.fixture(scope="session")
def chat_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

    rows = load_rolebench("sample", "test")
    texts = [text for row in rows for text in [*row["references"], row["raw_reference"] or ""]]
    tokenizer = AutoTokenizer.from_pretrained(tiny_model).train_new_from_iterator(texts, 1500, show_progress=False)
    tokenizer.chat_template = load_chat_template("rolellama")
    config = AutoConfig.from_pretrained(tiny_model, vocab_size=len(tokenizer), max_position_embeddings=4096)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = LlamaForCausalLM(config)
    folder = tmp_path_factory.mktemp("chat") / "tiny-chat"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

"""Families by name: recognised where a name says so, and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.judging.systems import find_families, find_family


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("gpt-4o-2024-08-06", "gpt"),
        ("GPT-3.5-turbo", "gpt"),
        ("RoleGPT", "gpt"),
        ("chatgpt-4o-latest", "gpt"),
        ("text-davinci-003", "gpt"),
        ("openai/gpt-oss-20b", "gpt"),
        ("o1-mini", "gpt"),
        ("openai/o3", "gpt"),
        ("https://api.openai.com/v1 gpt-4o", "gpt"),
        ("claude-3-5-sonnet-20241022", "claude"),
        ("anthropic.claude-v2:1", "claude"),
        ("meta-llama/Llama-2-7b-hf", "llama"),
        ("lmsys/vicuna-7b-v1.5", "llama"),
        ("tatsu-lab/alpaca-7b-wdiff", "llama"),
        ("RoleLLaMA", "llama"),
        ("runs/rolellama-7b/checkpoint-716", "llama"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct", "llama"),
        ("THUDM/chatglm2-6b", "glm"),
        ("RoleGLM", "glm"),
        ("glm-4-9b-chat", "glm"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen"),
        ("QwQ-32B", "qwen"),
        ("ollama/qwen2.5", "qwen"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistral"),
        ("HuggingFaceH4/zephyr-7b-beta", "mistral"),
        ("stabilityai/stablelm-zephyr-3b", "stablelm"),
        ("google/gemma-2-9b-it", "gemma"),
        ("gemini-1.5-pro", "gemini"),
        ("deepseek-chat", "deepseek"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen"),
        ("microsoft/phi-1_5", "phi"),
        ("Phi-3.5-mini-instruct", "phi"),
        ("01-ai/Yi-34B-Chat", "yi"),
        ("internlm2_5-7b-chat", "internlm"),
        ("baichuan-inc/Baichuan2-13B-Chat", "baichuan"),
        ("tiiuae/falcon-7b", "falcon"),
        ("EleutherAI/gpt-neox-20b", "pythia"),
        ("EleutherAI/gpt-j-6b", "pythia"),
        # The nearest part of a path counts.
        ("/data/gemma/llama-8b", "llama"),
        ("C:\\models\\qwen2-7b\\final", "qwen"),
    ],
)
def test_recognised(name: str, family: str) -> None:
    assert find_family(name) == family
    assert find_family(f" {name.upper()}") == family


@pytest.mark.parametrize(
    "name",
    [
        *(None, "", "words", "quotes", "scripted judge", "Hamlet", "predictions", "runs/a/checkpoint-716", "/"),
        *("philosophy-7b", "phi", "delphi", "sophia-2", "yi", "yield-7b", "/home/yi/run", "go1", "solo1"),
        *("AIDC/Marco-o1", "MiniGPT-4", "egpt", "llama.cpp", "ollama", "LLaMA-Factory/saves/mine", "autogpt"),
        *("gemmation", "canary: echo", "command", "bloomberg", "granitello", "grokking", "ayahuasca"),
    ],
)
def test_not_recognised(name: str | None) -> None:
    assert find_family(name) is None


@given(st.text(max_size=50))
def test_any_name_has_an_answer(name: str) -> None:
    assert (find_family(name) is None) == (find_families(name) == ())

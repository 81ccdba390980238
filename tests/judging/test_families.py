"""Families by name: recognised where a name says so, and nowhere else."""

import pytest

from rolellm.judging.systems import find_family

NAMES = {
    "gpt": "gpt-4o RoleGPT openai/gpt-oss-20b o1-mini openai/o3",
    "claude": "claude-3-5-sonnet-20241022 anthropic.claude-v2:1",
    "llama": "meta-llama/Llama-2-7b-hf lmsys/vicuna-7b-v1.5 tatsu-lab/alpaca-7b-wdiff RoleLLaMA "
    "runs/rolellama-7b/checkpoint-716 nvidia/Llama-3.1-Nemotron-70B-Instruct /data/gemma/llama-8b",
    "glm": "THUDM/chatglm2-6b RoleGLM glm-4-9b-chat",
    "qwen": "Qwen/Qwen2.5-7B-Instruct QwQ-32B ollama/qwen2.5 deepseek-ai/DeepSeek-R1-Distill-Qwen-7B "
    "C:\\models\\qwen2-7b\\final",
    "mistral": "mistralai/Mixtral-8x7B-Instruct-v0.1 HuggingFaceH4/zephyr-7b-beta",
    "stablelm": "stabilityai/stablelm-zephyr-3b",
    "gemma": "google/gemma-2-9b-it",
    "gemini": "gemini-1.5-pro",
    "deepseek": "deepseek-chat",
    "phi": "microsoft/phi-1_5 Phi-3.5-mini-instruct",
    "yi": "01-ai/Yi-34B-Chat",
    "internlm": "internlm2_5-7b-chat",
    "baichuan": "baichuan-inc/Baichuan2-13B-Chat",
    "falcon": "tiiuae/falcon-7b",
    "pythia": "EleutherAI/gpt-neox-20b EleutherAI/gpt-j-6b",
}


@pytest.mark.parametrize("family", NAMES)
def test_recognised(family: str) -> None:
    for name in NAMES[family].split():
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

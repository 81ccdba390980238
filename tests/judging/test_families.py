"""Families by name: recognised where a name says so, and nowhere else."""

import pytest

from rolellm.judging.systems import find_family

NAMES = {
    "gpt": "gpt-4o RoleGPT openai/gpt-oss-20b o1-mini openai/o3",
    "claude": "claude-3-5-sonnet-20241022 anthropic.claude-v2:1",
    "llama": "meta-llama/Llama-2-7b-hf RoleLLaMA runs/rolellama-7b/checkpoint-716 /data/gemma/llama-8b",
    "glm": "THUDM/chatglm2-6b RoleGLM glm-4-9b-chat",
    "qwen": "QwQ-32B ollama/qwen2.5 deepseek-ai/DeepSeek-R1-Distill-Qwen-7B C:\\models\\qwen2-7b\\final",
    "stablelm": "stabilityai/stablelm-zephyr-3b",
    "phi": "microsoft/phi-1_5 Phi-3.5-mini-instruct",
}


@pytest.mark.parametrize("family", NAMES)
def test_recognised(family: str) -> None:
    for name in NAMES[family].split():
        assert find_family(name) == family
        assert find_family(f" {name.upper()}") == family


@pytest.mark.parametrize(
    "name",
    [
        *(None, "", "words", "predictions", "runs/a/checkpoint-716", "/", "phi", "delphi", "yield-7b", "/home/yi/run"),
        *("go1", "MiniGPT-4", "ollama", "LLaMA-Factory/saves/mine", "autogpt", "gemmation", "canary: echo", "command"),
    ],
)
def test_not_recognised(name: str | None) -> None:
    assert find_family(name) is None

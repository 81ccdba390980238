"""Shared prefixes in a script with plain TRL: one line, the same losses, fewer tokens.

    python examples/share_prefixes.py MODEL [sft|dpo|grpo]

MODEL is a folder or a Hub id, such as the base that `rolellm demo` builds in rolellm-demo/run/base-*. The rows are
those of the embedded sample. Comment out the line with `share_prefixes` to see the same losses in more time.
"""

import sys

import torch
import trl
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

import rolellm


def reward_likeness(completions, references, **_):
    """Rouge-L with the role's own replies."""
    return rolellm.rewards.rouge(completions, references)


def main(name: str, kind: str = "sft") -> None:
    """Train a few steps and print their losses."""
    # Sorted by role, and kept in that order: rows of one batch begin alike.
    rows = load_dataset("rolebench", "sample", split="train").sort("role")
    rows = rows.filter(lambda row: row["language"] == "en" and row["raw_reference"])

    def message(role: str, text: str) -> list[dict[str, str]]:
        return [{"role": role, "content": text}]

    def columns(row: dict) -> dict:
        prompt = message("system", row["role_description"]) + message("user", row["question"])
        reply, plain = message("assistant", row["references"][0]), message("assistant", row["raw_reference"])
        return {
            "sft": {"prompt": prompt, "completion": reply},
            "dpo": {"prompt": prompt, "chosen": reply, "rejected": plain},
            "grpo": {"prompt": prompt, "references": row["references"]},
        }[kind]

    dataset = rows.map(columns, remove_columns=rows.column_names)
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=False)
    sharing = rolellm.share_prefixes(model)
    options = {"output_dir": "runs/shared", "max_steps": 3, "per_device_train_batch_size": 16, "logging_steps": 1}
    options |= {"use_cpu": not torch.cuda.is_available(), "bf16": torch.cuda.is_available()}
    options |= {"report_to": "none", "save_strategy": "no", "train_sampling_strategy": "sequential"}
    if kind == "grpo":
        options |= {"num_generations": 4, "max_completion_length": 32, "shuffle_dataset": False}
    upper = kind.upper()
    trainer = getattr(trl, f"{upper}Trainer")(
        model,
        args=getattr(trl, f"{upper}Config")(**options),
        train_dataset=dataset,
        processing_class=tokenizer,
        **({"reward_funcs": reward_likeness} if kind == "grpo" else {}),
    )
    trainer.train()
    print(sharing)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    main(*sys.argv[1:])

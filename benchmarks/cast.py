"""Memory of a cast: roles with an adapter each on one base, against the base alone and a base for each role.

Usage::

    python benchmarks/cast.py --base FOLDER [--roles 8] [--rank 16] [--json]

Memory is what the process of `rolellm.models.adapters.AdapterModel` alone holds (USS), after a reply by all roles in
one batch. Adapters are LoRA on all linear layers, with random weights.
"""

import ctypes
import gc
import tempfile
from pathlib import Path

import psutil
import torch
from common import environment, existing, make_parser, report
from peft import LoraConfig, get_peft_model

from rolellm.models.adapters import AdapterModel
from rolellm.models.load import load_whole, open_tokenizer
from rolellm.models.local_model import Decoding, Draft


def _make_adapter(base: Path, folder: Path, rank: int) -> int:
    """Write an adapter, and return the bytes of its weights."""
    config = LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    tuned = get_peft_model(load_whole(base, dtype=torch.float32), config)
    tuned.save_pretrained(folder)
    open_tokenizer(base).save_pretrained(folder)
    return (folder / "adapter_model.safetensors").stat().st_size


def _measure_memory() -> int:
    gc.collect()
    # glibc keeps freed memory for later; it is not the cast's.
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_full_info().uss)


def main() -> None:
    """Measure, and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--base", type=existing, required=True, help="a folder with a model")
    parser.add_argument("--roles", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "adapter"
        size = _make_adapter(options.base, folder, options.rank)
        empty = _measure_memory()
        model = AdapterModel(str(options.base))
        base = _measure_memory() - empty
        for number in range(options.roles):
            model.add(f"role-{number}", str(folder))
        drafts = []
        for name, form in model.forms.items():
            prompt = form.encode([{"role": "user", "content": f"Who are you, {name}?"}])
            drafts.append(Draft(form, prompt, Decoding(max_new_tokens=8), lambda _: None, adapter=name))
        model.complete(drafts)
        drafts.clear()
        cast = _measure_memory() - empty
    figures = {
        "base_mib": base / 2**20,
        "adapter_mib": size / 2**20,
        "cast_mib": cast / 2**20,
        "cast_over_base_and_adapters": cast / (base + options.roles * size),
    }
    ratios = {"a base for each role": options.roles * (base + size) / cast}
    notes = [f"{options.roles} roles of rank {options.rank} on {options.base.name}, float32"]
    report(
        "cast", {"ratios": ratios, "figures": figures, "n": options.roles, **environment("peft")}, notes, options.json
    )


if __name__ == "__main__":
    main()

"""The base of a recipe: on the Hub, in a folder, or a tiny model built from the training rows without a download."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import ModelError, RecipeError, require
from rolellm.core.files import fill_folder, write_json
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row
from rolellm.core.settings import dump
from rolellm.data.rolebench.schema import SAMPLE
from rolellm.models.load import check_patterns, fetch, load_adapter, load_part, load_whole, open_tokenizer
from rolellm.models.prompts.encode import check_settled, find_end_token, settle_template
from rolellm.models.prompts.render import DescriptionPrompts, load_chat_template
from rolellm.training.examples import Example, encode
from rolellm.training.recipe import MethodRecipe, PromptRecipe, Recipe, TrainingRecipe
from rolellm.training.rows import Conversation

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Bumped when what is built from the same recipe and rows changes, so that an older build is not taken for it.
_BUILD_VERSION = 3
# Tokens that a built base takes where training needs no more: a card's description and example talk fit (our choice).
_CONTEXT = 2048
# What the chat templates write besides start and end tokens.
_SPECIAL = {
    "rolellama": (),
    "chatglm2": ("[gMASK]", "<sop>"),
    "chatglm3": ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
}
# Examples per step of warming, and its peak learning rate.
_WARM_BATCH, _WARM_RATE = 8, 2e-3
# What warming takes from the recipe's training section.
_SHARED = (
    *("lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "shared_prefix", "attention"),
    *("roles_per_step", "max_length", "group_by_length", "bf16", "use_cpu", "seed"),
)


def build_hash(recipe: Recipe, rows: Sequence[Row]) -> str:
    """SHA-256 in hex of all that decides what is built."""
    return hash_json(
        {
            "version": _BUILD_VERSION,
            "build": recipe.base.build,
            "form": recipe.prompt.form,
            "tiny": dump(recipe.base.tiny),
            "warm": dump(recipe.base.warm),
            "templates": list(DescriptionPrompts(recipe.prompt.system_template).hashes.values()),
            "training": {key: getattr(recipe.training, key) for key in _SHARED},
            "rows": [asdict(row) for row in rows],
        }
    )


def make_warming_examples(recipe: Recipe, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> list[Example]:
    """Each instruction with its role-free answer: with no system instruction, and under that of each role."""
    ask = DescriptionPrompts(recipe.prompt.system_template)
    plain_chats: dict[str, Conversation] = {}
    in_role: list[Conversation] = []
    for row in rows:
        if row.raw_reference is None or not row.raw_reference.strip():
            continue
        system, user = ask(row)
        reply = {"completion": row.raw_reference}
        plain_chat = Conversation(row.id, (user,), reply)
        plain_chats.setdefault(row.question, plain_chat)
        in_role.append(Conversation(row.id, (system, user), reply))
    if not in_role:
        raise RecipeError("base.build: no row has a raw_reference to warm on; include general rows, or give base.path")
    limit, warm = recipe.training.max_length, recipe.base.warm
    plain = encode(list(plain_chats.values()), tokenizer, max_length=limit, truncate_replies=True)
    alone = []
    for item in plain:
        # A base model is a language model: it learns to write the question, too.
        first, rest = item.input_ids[:1], item.input_ids[1:]
        alone.append(replace(item, prompt_ids=first, reply_ids=rest, family="alone"))
    examples = encode(in_role, tokenizer, max_length=limit, truncate_replies=True)
    return alone * warm.alone + examples * warm.in_role


def build_tokenizer(recipe: Recipe, rows: Sequence[Row]) -> PreTrainedTokenizerBase:
    """A byte-level BPE trained on the rows as training shows them, so that what repeats becomes few tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.base.tiny.vocab_size,
        special_tokens=["<s>", "</s>", "<pad>", *_SPECIAL[recipe.prompt.form]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(_read_row_texts(recipe, rows), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=load_chat_template(recipe.prompt.form),
        extra_special_tokens=list(_SPECIAL[recipe.prompt.form]),
        model_max_length=find_context(recipe, None),
    )


def _read_row_texts(recipe: Recipe, rows: Sequence[Row]) -> Iterator[str]:
    ask = DescriptionPrompts(recipe.prompt.system_template)
    for row in rows:
        yield from (message["content"] for message in ask(row))
        yield from row.references
        yield row.raw_reference or ""
        yield "### Instruction:\n\n### Input:\n\n### Response:\n"


def create_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Any:
    """A model of the recipe's family and sizes with random weights, by its seed."""
    import transformers

    tiny = recipe.base.tiny
    transformers.set_seed(recipe.training.seed)
    config = transformers.AutoConfig.for_model(
        str(recipe.base.build).removeprefix("tiny-"),
        vocab_size=len(tokenizer),
        hidden_size=tiny.hidden_size,
        intermediate_size=tiny.intermediate_size,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.heads,
        head_dim=tiny.hidden_size // tiny.heads,
        initializer_range=tiny.initializer_range,
        max_position_embeddings=find_context(recipe, None),
        # Tied, because most words of so small a corpus are too rare to learn twice (our choice).
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.generation_config.eos_token_id = find_end_token(tokenizer)
    return model


def load_tokenizer(path: Path, form: str = "rolellama") -> PreTrainedTokenizerBase:
    """Load a tokenizer and set the chat template that training and inference will use.

    Args:
        path: A folder as ``save_pretrained`` writes it.
        form: As in `rolellm.training.recipe.PromptRecipe`; ``model`` keeps the tokenizer's own chat template,
            settled (see `rolellm.models.prompts.encode`).

    Raises:
        ModelError: When there is no tokenizer to load, or its own template is asked for and it has none, or one
            that does not ask for a reply as it shows one.
    """
    tokenizer = open_tokenizer(path)
    if form != "model":
        tokenizer.chat_template = load_chat_template(form)
    elif not tokenizer.chat_template:
        raise ModelError(f"{path}: its tokenizer has no chat template; use prompt.form: {PromptRecipe().form}")
    else:
        settle_template(tokenizer)
        check_settled(tokenizer)
    return tokenizer


def load_model(
    path: Path, method: MethodRecipe, training: TrainingRecipe, adapter: Path | None = None
) -> PreTrainedModel:
    """Load a causal language model as it is to be trained.

    An adapter's frozen base is held in bfloat16 where the recipe computes in it, and in 4 bits with ``qlora``; weights
    that are trained themselves are held in float32 always.

    Args:
        path: A folder as ``save_pretrained`` writes it.
        method: What is trained.
        training: Its ``bf16`` and ``use_cpu``.
        adapter: A tuned adapter to put on it, which is trained on.

    Raises:
        ModelError: When it cannot be loaded, or its weights are not all there.
    """
    require("torch", "transformers", extra="train")
    import torch
    from accelerate import PartialState
    from transformers import BitsAndBytesConfig

    options: dict[str, Any] = {"dtype": torch.float32}
    if method.name != "full" and training.half_precision:
        options["dtype"] = torch.bfloat16
    if method.name == "qlora":
        require("bitsandbytes", extra="train")
        options["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, **dump(method.quantization))
        # Always given: bitsandbytes would take a GPU that the recipe stays off.
        options["device_map"] = {"": "cpu" if training.on_cpu else PartialState().local_process_index}
    model = load_whole(path, **options)
    _keep_gradients_right(model)
    if adapter is None:
        return model
    tuned = load_adapter(model, str(adapter), is_trainable=True)
    # A base within the adapter's run is named by its place there.
    tuned.peft_config["default"].base_model_name_or_path = str(path)
    return tuned


def _keep_gradients_right(model: Any) -> None:
    """Keep bitsandbytes from repacking 4-bit weights on CPUs with AVX512-BF16.

    It does so in the first forward pass without gradients, for inference; gradients through the repacked weights come
    out wrong, without a word.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


_DONE = "base.json"


def read_base_config(recipe: Recipe) -> Any:
    """The configuration of a recipe's base, without its weights; ``None`` for one that is built to fit the recipe.

    Raises:
        ModelError: When there is no base, or its configuration cannot be read.
    """
    if recipe.base.build is not None:
        return None
    from transformers import AutoConfig

    return load_part("config.json", AutoConfig, _fetch_base(recipe), local_files_only=True)


def find_context(recipe: Recipe, config: Any) -> int | None:
    """The most tokens that a base takes; ``None`` where it does not say.

    Args:
        recipe: The recipe.
        config: The base's configuration, as from `read_base_config`.
    """
    if config is None:
        return max(_CONTEXT, recipe.training.max_length)
    positions: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return positions


def check_targets(recipe: Recipe, config: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that each of an adapter's targets is a layer of the base, on a model without weights.

    Args:
        recipe: The recipe.
        config: The base's configuration, as from `read_base_config`.
        tokenizer: The base's tokenizer.

    Raises:
        ModelError: When the configuration makes no causal language model.
        RecipeError: When a target is no layer (names those that are), or not a usable regular expression.
    """
    lora = recipe.method.lora
    names = {"target_modules": lora.target_modules, "modules_to_save": lora.extra.get("modules_to_save") or []}
    if names == {"target_modules": "all-linear", "modules_to_save": []}:
        return
    if recipe.base.adapter is not None or recipe.method.name == "full":
        return
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        if config is None:
            empty = create_model(recipe, tokenizer)
        else:
            try:
                empty = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            except ValueError as error:
                raise ModelError(f"the base is not a causal language model: {error}") from error
    modules = dict(empty.named_modules())
    try:
        check_patterns(dump(lora), list(modules))
    except ValueError as error:
        raise RecipeError(f"method.lora: {error}") from error
    kinds = torch.nn.Linear, torch.nn.Embedding, Conv1D
    layers = [name for name, module in modules.items() if isinstance(module, kinds)]
    for key, candidates in (("target_modules", layers), ("modules_to_save", list(modules))):
        unknown = _list_unknown(names[key], candidates)
        if unknown:
            ends = {name.rpartition(".")[2] for name in layers}
            layer_names = ", ".join(sorted(ends))
            raise RecipeError(
                f"method.lora.{key}: the base has no layer {', '.join(unknown)}; it has {layer_names}; "
                "target_modules: all-linear takes every linear one"
            )


def _list_unknown(targets: str | Sequence[str], names: Sequence[str]) -> list[str]:
    """List the targets that match no name: a text is a pattern of whole names, a list has the ends of names."""
    if targets == "all-linear":
        return []
    patterns: dict[str, str] = {}
    if isinstance(targets, str):
        patterns[targets] = targets
    else:
        for end in targets:
            patterns[end] = rf"(.*\.)?{re.escape(end)}"
    unknown = []
    for target, pattern in patterns.items():
        if not any(map(re.compile(pattern).fullmatch, names)):
            unknown.append(target)
    return unknown


def load_base_tokenizer(recipe: Recipe, rows: Sequence[Row], out: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a recipe's base, without building or loading the model.

    Args:
        recipe: The recipe.
        rows: The training rows, as from `rolellm.training.rows.select_rows`.
        out: The run's folder, where a built base may lie already.

    Raises:
        ModelError: When it cannot be loaded.
    """
    if recipe.base.build is not None:
        folder = _locate_built_base(recipe, rows, out)
        if not (folder / _DONE).is_file():
            return build_tokenizer(recipe, rows)
        return load_tokenizer(folder, recipe.prompt.form)
    adapter = recipe.base.adapter
    if adapter is not None and any(adapter.glob("tokenizer*")):
        return load_tokenizer(adapter, recipe.prompt.form)
    return load_tokenizer(_fetch_base(recipe), recipe.prompt.form)


def pin_base(recipe: Recipe, commit: str | None = None) -> Recipe:
    """The recipe with a commit of its base, by default what its revision is now: all of a run reads the same files."""
    if recipe.base.model is None:
        return recipe
    revision = commit or _fetch_base(recipe).name
    return replace(recipe, base=replace(recipe.base, revision=revision))


def _fetch_base(recipe: Recipe, *, weights: bool = False) -> Path:
    """The folder of a base that is there already, or on the Hub.

    Raises:
        ModelError: When ``base.path`` is not a folder with a model, or the Hub does not give ``base.model``.
    """
    path = recipe.base.path
    if path is None:
        return fetch(str(recipe.base.model), recipe.base.revision, weights=weights)
    if not path.is_dir():
        raise ModelError(
            f"base.path: no folder at {path}; give one that save_pretrained or `rolellm data convert-chatglm` wrote, "
            "a base.model on the Hub, or build: tiny-llama"
        )
    if not (path / "config.json").is_file():
        raise ModelError(f"base.path: {path} has no config.json, so it is not a saved model")
    return path


def _locate_built_base(recipe: Recipe, rows: Sequence[Row], out: Path) -> Path:
    """Locate a built base under ``out``, by the hash of all that decides it."""
    return out / f"base-{build_hash(recipe, rows)[:12]}"


def build_base(
    recipe: Recipe, rows: Sequence[Row], out: Path, tokenizer: PreTrainedTokenizerBase | None = None
) -> Path:
    """The folder of a recipe's base; with ``base.build``, it is built and warmed unless that was done before.

    Args:
        recipe: The recipe.
        rows: The training rows, as from `rolellm.training.rows.select_rows`; never test rows.
        out: The run's folder; the base goes to ``out/base-<hash>``, complete or not at all.
        tokenizer: The tokenizer as `load_base_tokenizer` made it, where it is at hand.

    Returns:
        The folder with the model and its tokenizer.

    Raises:
        ModelError: When the base is not there.
        RecipeError: When the rows have nothing to warm on, or something that cannot be trained on.
    """
    if recipe.base.build is None:
        return _fetch_base(recipe, weights=True)
    folder = _locate_built_base(recipe, rows, out)
    if (folder / _DONE).is_file():
        return folder
    from rolellm.training.fit import Fit, fit, join_processes

    chosen = tokenizer or build_tokenizer(recipe, rows)
    examples = make_warming_examples(recipe, rows, chosen)
    processes = join_processes(recipe.training)
    shared = {key: getattr(recipe.training, key) for key in (*_SHARED, "gradient_checkpointing", "threads")}
    training = TrainingRecipe(
        **shared,
        num_train_epochs=1.0,
        # A multiple of the processes.
        replies_per_step=max(1, _WARM_BATCH // processes.num_processes) * processes.num_processes,
        learning_rate=_WARM_RATE,
    )
    is_first = processes.is_main_process
    if is_first:
        for leftover in (folder, *out.glob(f".{folder.name}*.part")):  # of a kill
            shutil.rmtree(leftover, ignore_errors=True)
        if any(row.id.startswith(f"{SAMPLE}/") for row in rows):
            sys.stderr.write("the training rows have no plain answers: the base is warmed on those of the sample\n")
    with fill_folder(folder) if is_first else nullcontext(folder) as partial:
        job = Fit(training=training, method=MethodRecipe(name="full"), folder=partial, label="warming the base")
        fit(create_model(recipe, chosen), chosen, examples, job).save(partial)
        if is_first:
            facts = {"hash": build_hash(recipe, rows), "examples": len(examples)}
            write_json(partial / _DONE, facts)
    processes.wait_for_everyone()
    return folder

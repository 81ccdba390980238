"""What a tiny model is built from: the training rows' own tokens, random weights, and plain answers to warm it on.

A built base is *warmed* before tuning: trained to give each training instruction its role-free answer, whoever it is
asked to be. Tuning then has something to tune (an adapter on random weights hardly learns), and "untuned" means a
small model that answers plainly. Only the rows handed in are used, and those are training rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rolellm.errors import RecipeError
from rolellm.extras import require
from rolellm.fingerprint import hash_json
from rolellm.prompts.encode import end_token_id
from rolellm.prompts.render import chat_template, prompt_messages
from rolellm.records import Row
from rolellm.rocit.examples import Examples
from rolellm.rocit.recipe import Recipe
from rolellm.rocit.rows import Conversation, encode, templates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Bumped when what is built from the same recipe and rows changes, so that an older build is not taken for it.
_BUILD_VERSION = 2
# What the chat templates write besides start and end tokens.
_SPECIAL = {
    "rolellama": (),
    "chatglm2": ("[gMASK]", "<sop>"),
    "chatglm3": ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
}
# What warming does not take from the recipe's training section.
_TUNING_ALONE = (
    "epochs",
    "max_steps",
    "batch_size",
    "grad_accumulation",
    "learning_rate",
    "truncate_replies",
    "gradient_checkpointing",
    "threads",
)


def build_hash(recipe: Recipe, rows: Sequence[Row]) -> str:
    """SHA-256 in hex of all that decides what is built."""
    template = templates(recipe.prompt)
    training = {key: value for key, value in asdict(recipe.training).items() if key not in _TUNING_ALONE}
    return hash_json(
        {
            "version": _BUILD_VERSION,
            "build": recipe.base.build,
            "form": recipe.prompt.form,
            "tiny": asdict(recipe.base.tiny),
            "warm": asdict(recipe.base.warm),
            "templates": [template("en").hash, template("zh").hash],
            "training": training,
            "rows": [asdict(row) for row in rows],
        }
    )


def warming(recipe: Recipe, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> Examples:
    """Each instruction with its role-free answer: with no system instruction, and under that of each role."""
    template = templates(recipe.prompt)
    alone: dict[str, Conversation] = {}
    in_role: list[Conversation] = []
    for row in rows:
        if row.raw_reference is None or not row.raw_reference.strip():
            continue
        system, user = prompt_messages(row, template(row.language))
        alone.setdefault(row.question, Conversation(row.id, (user,), row.raw_reference))
        in_role.append(Conversation(row.id, (system, user), row.raw_reference))
    if not in_role:
        raise RecipeError("base.build: no row has a raw_reference to warm on; include general rows, or give base.path")
    limit = recipe.training.max_length
    plain = encode(list(alone.values()), tokenizer, max_length=limit, truncate_replies=True)
    # A base model is a language model: it learns to write the question, too.
    whole = [
        replace(item, prompt_ids=item.prompt_ids[:1], reply_ids=item.prompt_ids[1:] + item.reply_ids, family="alone")
        for item in plain
    ]
    warm = recipe.base.warm
    told = list(encode(in_role, tokenizer, max_length=limit, truncate_replies=True))
    return Examples.of([*(whole * warm.alone), *(told * warm.in_role)])


def build_tokenizer(recipe: Recipe, rows: Sequence[Row]) -> PreTrainedTokenizerBase:
    """A byte-level BPE trained on the rows as training shows them, so that what repeats becomes few tokens."""
    require("torch", "transformers", extra="train")
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
    model.train_from_iterator(_texts(recipe, rows), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=chat_template(recipe.prompt.form),
        extra_special_tokens=list(_SPECIAL[recipe.prompt.form]),
        model_max_length=recipe.training.max_length,
    )


def _texts(recipe: Recipe, rows: Sequence[Row]) -> Iterator[str]:
    template = templates(recipe.prompt)
    for row in rows:
        yield from (message["content"] for message in prompt_messages(row, template(row.language)))
        yield from row.references
        yield row.raw_reference or ""
        yield "### Instruction:\n\n### Input:\n\n### Response:\n"


def new_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Any:
    """A model of the recipe's family and sizes with random weights, by its seed."""
    import transformers

    tiny = recipe.base.tiny
    family = {"tiny-llama": "Llama", "tiny-glm": "Glm", "tiny-glm4": "Glm4"}[str(recipe.base.build)]
    transformers.set_seed(recipe.training.seed)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer),
        hidden_size=tiny.hidden_size,
        intermediate_size=tiny.intermediate_size,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.heads,
        head_dim=tiny.hidden_size // tiny.heads,
        initializer_range=tiny.initializer_range,
        max_position_embeddings=recipe.training.max_length,
        # Tied, because most words of so small a corpus are too rare to learn twice (our choice).
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.generation_config.eos_token_id = end_token_id(tokenizer)
    return model

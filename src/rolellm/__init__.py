"""RoleLLM for the Hugging Face stack: tune a role player, let it answer, score it, judge it, publish it.

>>> import rolellm
>>> from datasets import load_dataset
>>> load_dataset("rolebench", "sample", split="test").column_names[:3]
['id', 'role', 'language']

Importing it registers the dataset name ``rolebench``. Everything else is imported when it is first used.
"""

from rolellm.runtime import starting as _starting  # noqa: F401  # first, for its effect

# isort: split
from typing import TYPE_CHECKING

from rolellm.core.errors import RoleLLMError
from rolellm.core.lazy import lazy as _lazy
from rolellm.rolebench.register import register as _register
from rolellm.version import __version__

if TYPE_CHECKING:
    from rolellm.construct.character import Character as Character
    from rolellm.evaluation.generate import generate as generate
    from rolellm.evaluation.rouge import rouge_l as rouge_l
    from rolellm.evaluation.score import score as score
    from rolellm.llm.llm import LLM as LLM
    from rolellm.playing.player import RolePlayer as RolePlayer
    from rolellm.rocit.train import train as train
    from rolellm.rolebench import dataset_fingerprint as dataset_fingerprint
    from rolellm.rolebench import load_rolebench as load_rolebench

_NAMES = {
    "Character": "rolellm.construct.character:Character",
    "LLM": "rolellm.llm.llm:LLM",
    "RolePlayer": "rolellm.playing.player:RolePlayer",
    "dataset_fingerprint": "rolellm.rolebench:dataset_fingerprint",
    "generate": "rolellm.evaluation.generate:generate",
    "judge": "rolellm.judging.run:judge",
    "load_rolebench": "rolellm.rolebench:load_rolebench",
    "push": "rolellm.rocit.publish:push",
    "report": "rolellm.report.build:report",
    "rouge_l": "rolellm.evaluation.rouge:rouge_l",
    "score": "rolellm.evaluation.score:score",
    "train": "rolellm.rocit.train:train",
}

__all__ = ["RoleLLMError", "__version__", *_NAMES]

__getattr__, __dir__ = _lazy(__name__, _NAMES)

_register()

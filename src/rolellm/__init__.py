"""RoleLLM for the Hugging Face stack: tune a role player, let it answer, score it, judge it, publish it.

>>> import rolellm
>>> from datasets import load_dataset
>>> load_dataset("rolebench", "sample", split="test").column_names[:3]
['id', 'role', 'language']

Importing it registers the dataset name ``rolebench``. Everything else is imported when it is first used.
"""

from typing import TYPE_CHECKING

from rolellm.core.errors import RoleLLMError
from rolellm.core.lazy import load_lazily as _lazy
from rolellm.data.rolebench.register import register as _register
from rolellm.version import __version__

if TYPE_CHECKING:
    from rolellm import rewards as rewards
    from rolellm.data.rolebench import load_rolebench as load_rolebench
    from rolellm.exporting.export import export as export
    from rolellm.journeys.evaluation import evaluate as eval  # noqa: F401
    from rolellm.journeys.improving import improve as improve
    from rolellm.journeys.making import make as make
    from rolellm.judging.certifying import certify as certify
    from rolellm.llm.llm import LLM as LLM
    from rolellm.making.character import Character as Character
    from rolellm.measures import check as check
    from rolellm.models.prefix_sharing import share_prefixes as share_prefixes
    from rolellm.playing.player import RolePlayer as RolePlayer
    from rolellm.scenes.play import play_scene as play_scene
    from rolellm.scoring.generate import generate as generate
    from rolellm.scoring.rouge import rouge_l as rouge_l
    from rolellm.scoring.score import score as score
    from rolellm.training.train import train as train

_NAMES = {
    "Character": "rolellm.making.character:Character",
    "LLM": "rolellm.llm.llm:LLM",
    "RolePlayer": "rolellm.playing.player:RolePlayer",
    "certify": "rolellm.judging.certifying:certify",
    "check": "rolellm.measures:check",
    "eval": "rolellm.journeys.evaluation:evaluate",
    "export": "rolellm.exporting.export:export",
    "generate": "rolellm.scoring.generate:generate",
    "improve": "rolellm.journeys.improving:improve",
    "judge": "rolellm.judging.run:judge",
    "make": "rolellm.journeys.making:make",
    "load_rolebench": "rolellm.data.rolebench:load_rolebench",
    "play_scene": "rolellm.scenes.play:play_scene",
    "push": "rolellm.training.publish:push",
    "report": "rolellm.reporting.build:report",
    "rouge_l": "rolellm.scoring.rouge:rouge_l",
    "rewards": "rolellm.rewards",
    "score": "rolellm.scoring.score:score",
    "share_prefixes": "rolellm.models.prefix_sharing:share_prefixes",
    "style": "rolellm.scoring.style:style",
    "train": "rolellm.training.train:train",
}

__all__ = ["RoleLLMError", "__version__", *_NAMES]

__getattr__, _ = _lazy(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)


_register()

"""RoleLLM for the Hugging Face stack: importing it registers the data set name ``rolebench``.

>>> import rolellm
>>> from datasets import load_dataset
>>> load_dataset("rolebench", "sample", split="test").column_names[:3]
['id', 'role', 'language']
"""

from rolellm.core.errors import RoleLLMError
from rolellm.rolebench import dataset_fingerprint, load_rolebench
from rolellm.rolebench.register import register as _register
from rolellm.runtime import starting as _starting  # noqa: F401  # first, for its effect
from rolellm.version import __version__

__all__ = ["RoleLLMError", "__version__", "dataset_fingerprint", "load_rolebench"]

_register()

"""RoleLLM for the Hugging Face stack: importing it registers the data set name ``rolebench``.

>>> import rolellm
>>> from datasets import load_dataset
>>> load_dataset("rolebench", "sample", split="test").column_names[:3]
['id', 'role', 'language']
"""

from rolellm.version import __version__

__all__ = ["__version__"]

"""The errors that this library raises on purpose, as one tree.

::

    RoleLLMError
    ├── DataError (ValueError)            something is wrong with data; names the file and line where it can
    │   ├── ReleaseNotFoundError          no release at data_dir, $ROLEBENCH_DIR or on the Hub
    │   ├── ReleaseFormatError            a release file is not what it should be
    │   ├── PredictionError               predictions that cannot be scored
    │   ├── ScriptError                   a script that cannot be read, or in which a role never speaks
    │   └── CardError                     a character card that cannot be read
    ├── SettingsError (ValueError)        a setting or option that cannot be carried out
    │   └── RecipeError                   one of a training recipe
    ├── EndpointError                     no endpoint is left that answers; names the last answer of each
    ├── ModelError (ValueError)           a model that cannot be loaded, or cannot take the prompts given
    ├── HubError                          something could not be published
    │   ├── HubLoginError                 no token, or one that may not do this
    │   └── HubUnreachableError           no answer, or none but errors of its own; the same command again may do
    ├── JudgingError                      too many verdicts of a judging run are missing
    ├── DivergedError                     training stopped: its loss or gradient is no number any more
    ├── RunInUseError                     another process works in the run's folder
    ├── StoppedShortError                 stopped on request; finished work is kept and can be resumed
    └── MissingExtraError (ImportError)   an optional dependency is not installed; says which extra brings it

Every message says what was found, what was expected and the way out, so the command line prints it without a traceback.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RoleLLMError(Exception):
    """Base of all errors raised on purpose by this library."""


class DataError(RoleLLMError, ValueError):
    """Something is wrong with data that was read.

    Args:
        message: What was found and what was expected.
        path: The file, when there is one.
        line: The line in that file, counted from 1.

    Attributes:
        problem: The message without the place.
    """

    def __init__(self, message: str, *, path: str | Path | None = None, line: int | None = None) -> None:
        self.problem = message
        self.path = None if path is None else Path(path)
        self.line = line
        where = "" if path is None else f"{path}:{line}: " if line is not None else f"{path}: "
        super().__init__(where + message)


class ReleaseNotFoundError(DataError):
    """No copy of the RoleBench release was found in any of the places looked at."""


class ReleaseFormatError(DataError):
    """A file of the release does not have the published layout."""


class PredictionError(DataError):
    """Predictions that cannot be read, or that answer no row."""


class ScriptError(DataError):
    """A script that cannot be read, or in which the role asked for never speaks."""


class CardError(DataError):
    """A character card that cannot be read or written."""


class SettingsError(RoleLLMError, ValueError):
    """A setting or an option that cannot be carried out as written."""


class RecipeError(SettingsError):
    """A training recipe that cannot be carried out as written."""


class ModelError(RoleLLMError, ValueError):
    """A model that cannot be loaded, or that cannot take the prompts it was given."""


class EndpointError(RoleLLMError):
    """No endpoint is left that answers: a key is refused, a model is not served, or nothing listens there."""


class JudgingError(RoleLLMError):
    """Too many verdicts of a judging run are missing for its result to mean anything."""


class DivergedError(RoleLLMError):
    """Training stopped because its loss or its gradient is no number any more."""


class RunInUseError(RoleLLMError):
    """Another process works in the folder of a run."""


class HubError(RoleLLMError):
    """Something could not be published; what was published before is as it was."""


class HubLoginError(HubError):
    """There is no token for the Hub, or the one there is may not do what was asked."""


class HubUnreachableError(HubError):
    """The Hub did not answer, or answered with errors of its own, however often it was asked."""


class StoppedShortError(RoleLLMError):
    """Work stopped on request (Ctrl-C); what was done is kept.

    Args:
        message: What was kept, and where.
        resume: The command line that goes on from there.
    """

    def __init__(self, message: str, *, resume: str) -> None:
        self.resume = resume
        super().__init__(f"{message}\nResume with: {resume}")


class MissingExtraError(RoleLLMError, ImportError):
    """An optional dependency is missing.

    Args:
        module: The module that could not be imported.
        extra: The extra of this package that installs it.
    """

    def __init__(self, module: str, *, extra: str) -> None:
        self.extra = extra
        super().__init__(f'{module} is not installed. Install it with: pip install "rolellm[{extra}]"', name=module)


# --- Optional dependencies: ask for them where they are used, say how to get them, and leave out what they say in


def require(*modules: str, extra: str) -> None:
    """Check that optional modules can be imported, without importing them.

    Args:
        modules: Top-level module names, such as ``"torch"``.
        extra: The extra of this package that brings them.

    Raises:
        MissingExtraError: For the first module that is missing; names the ``pip install`` line.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(module, extra=extra)


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Leave out a warning: peft asks transformers by an old name, and no one but peft can do anything about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        yield

"""The errors that this library raises on purpose, as one tree, and the class of its warnings.

::

    RoleLLMError
    ├── DataError (ValueError)            something is wrong with data; names the file and line where it can
    │   ├── ReleaseNotFoundError          no release at data_dir, $ROLEBENCH_DIR or on the Hub
    │   ├── PredictionError               predictions that cannot be scored
    │   ├── ScriptError                   a script that cannot be read, or in which a role never speaks
    │   └── CardError                     a character card that cannot be read
    ├── SettingsError (ValueError)        an invalid setting or option
    │   └── RecipeError                   an invalid training recipe
    ├── EndpointError                     no endpoint is left that answers; names the last answer of each
    ├── ModelError (ValueError)           a model that cannot be loaded, or cannot take the prompts given
    ├── HubError                          publishing failed
    │   ├── HubLoginError                 not logged in, or the token lacks permission
    │   └── HubUnreachableError           the Hub does not answer or keeps failing; try again later
    ├── JudgingError                      too many verdicts of a judging run are missing
    ├── DivergedError                     training stopped: its loss or gradient is not finite
    ├── RunInUseError                     another process is using the run's folder
    ├── StoppedShortError                 stopped on request; finished work is kept and can be resumed
    └── MissingExtraError (ImportError)   an optional dependency is not installed; names the extra to install

Every message says what was found, what was expected and how to fix it, so the command line prints no traceback.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RoleLLMError(Exception):
    """Base of all errors raised on purpose by this library."""


class RoleLLMWarning(UserWarning):
    """Base of all warnings of this library: work goes on, with less than was asked for."""


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


class PredictionError(DataError):
    """Predictions that cannot be read, or that answer no row."""


class ScriptError(DataError):
    """A script that cannot be read, or in which the role asked for never speaks."""


class CardError(DataError):
    """A character card that cannot be read or written."""


class SettingsError(RoleLLMError, ValueError):
    """An invalid setting or option."""


class RecipeError(SettingsError):
    """An invalid training recipe."""


class ModelError(RoleLLMError, ValueError):
    """A model that cannot be loaded, or that cannot take the prompts it was given."""


class EndpointError(RoleLLMError):
    """No endpoint is left that answers: a key is refused, a model is not served, or nothing listens there."""


class JudgingError(RoleLLMError):
    """Too many verdicts are missing for a judging run's result to be meaningful."""


class DivergedError(RoleLLMError):
    """Training stopped: its loss or gradient is not finite, or the model's replies repeat, dry up, or never end."""


class RunInUseError(RoleLLMError):
    """Another process is using a run's folder."""


class HubError(RoleLLMError):
    """Publishing failed; what was on the Hub before is unchanged."""


class HubLoginError(HubError):
    """Not logged in to the Hub, or the token lacks the permission."""


class HubUnreachableError(HubError):
    """The Hub did not answer, or kept failing after several tries."""


class StoppedShortError(RoleLLMError):
    """Work stopped on request (Ctrl-C); what was done is kept.

    Args:
        message: What was kept, and where.
        resume: The command that continues from there.
    """

    def __init__(self, message: str, *, resume: str) -> None:
        self.resume = resume
        super().__init__(f"{message}\nResume with: {resume}")

    def name_command(self, command: str) -> StoppedShortError:
        """The same, with the command of the whole in the place of that of a stage."""
        message = str(self).removesuffix(f"\nResume with: {self.resume}")
        return StoppedShortError(message, resume=command)


class MissingExtraError(RoleLLMError, ImportError):
    """An optional dependency is missing.

    Args:
        module: The module that could not be imported.
        extra: The extra of this package that installs it.
    """

    def __init__(self, module: str, *, extra: str) -> None:
        self.extra = extra
        super().__init__(f'{module} is not installed. Install it with: pip install "rolellm[{extra}]"', name=module)


def require(*modules: str, extra: str) -> None:
    """Check that optional modules can be imported, without importing them.

    Args:
        modules: Top-level module names, such as ``"torch"``.
        extra: The extra of this package that installs them.

    Raises:
        MissingExtraError: For the first module that is missing; names the ``pip install`` line.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(module, extra=extra)
    # At each start it tells of an optional speed-up for 4-bit inference on CPUs.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether a device ran out of memory, whichever library noticed: torch, cuBLAS or Triton."""
    texts = ("out of memory", "ALLOC_FAILED", "can't allocate memory")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


@contextmanager
def note_out_of_memory(problems: list[str]) -> Iterator[None]:
    """Go on where a device runs out of memory, and note the first line of the error.

    What follows the block holds no traceback, which would keep the tensors that filled the memory.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        first_line = str(error).partition("\n")[0]
        problems.append(first_line)


@contextmanager
def hide_peft_warning() -> Iterator[None]:
    """Silence a warning that only peft and TRL can fix: they use an old name of transformers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        yield

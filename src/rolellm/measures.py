"""The measures of the command line for Python: the same defaults, and results that show themselves in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import SettingsError
from rolellm.core.settings import read, suggest_keywords
from rolellm.llm.llm import LLM, CallOptions

if TYPE_CHECKING:
    from rolellm.checks.character_tests import TestsResult
    from rolellm.checks.reward import AuditResult
    from rolellm.checks.safety import CheckSafety, SafetyResult
    from rolellm.runs import Run


@suggest_keywords()
def check(file: str | Path, model: str | LLM | None = None, *, out: str | Path = "character-tests") -> Run[TestsResult]:
    """Test a character: role, language, knowledge, catchphrases, jailbreaks.

    Args:
        file: The test file (docs/checks.md).
        model: A folder, a Hub id, YAML settings of a model, or an `LLM`; by default, the model that the file names.
        out: Folder for tests.html, assertions.jsonl, and the journal: a second run sends only new messages.

    Raises:
        SettingsError: For a file that cannot be read, and where no model is named.
    """
    from rolellm.checks.character_tests import CheckCharacter, read_tests
    from rolellm.reporting.blocks import lay_out_tests
    from rolellm.reporting.page import PageContent, write_page
    from rolellm.runs import run_step

    suite = read_tests(file)
    model = suite.model if model is None else model
    if model is None:
        raise SettingsError(f"no model is named; give one, or add `model` to {file}")
    run = run_step(CheckCharacter(suite), LLM.resolve(model), out)
    result = run.result
    summary, *_ = result.remarks()
    recipe = {"file": str(file), "models": run.manifest["models"], "settings": run.manifest["settings"]}
    blocks = [lay_out_tests(result)]
    content = PageContent(f"Tests of {result.role}", summary=summary, recipe=recipe, blocks=blocks)
    page = write_page(run.folder / "tests.html", content)
    return replace(run, result=replace(result, page=page))


def safety(
    model: str | LLM,
    against: str | LLM | None = None,
    *,
    roles: Sequence[Any] = (),
    guard: Any = None,
    out: str | Path = "safety",
    options: CallOptions | None = None,
    **settings: Any,
) -> Run[SafetyResult]:
    """Measure what tuning did to refusals and harmful replies, with roles and without; see docs/checks.md.

    Args:
        model: The tuned model: a folder, a Hub id, YAML settings of a model, or an `LLM`.
        against: Its base, as `model`; by default the one that an adapter names.
        roles: As `rolellm.RolePlayer` takes them.
        guard: YAML settings of a guard model or a judge that reads the replies; by default rules do.
        out: Folder for replies.jsonl and the journal: a second run sends only new messages.
        options: How the models are called: concurrency, budget and so on.
        settings: Fields of `rolellm.checks.safety.SafetySettings` and `rolellm.playing.settings.PlaySettings`; and
            ``engine``, as for `rolellm.LLM`.

    Raises:
        SettingsError: Without a base, and for settings that cannot be used.
        JudgingError: For a guard whose words are not in its form.
    """
    from rolellm.runs import run_step

    llm, step = plan_safety(model, against, roles=roles, guard=guard, options=options, **settings)
    return run_step(step, llm, out)


def plan_safety(
    model: str | LLM,
    against: str | LLM | None = None,
    *,
    roles: Sequence[Any] = (),
    guard: Any = None,
    engine: str = "auto",
    options: CallOptions | None = None,
    **settings: Any,
) -> tuple[LLM, CheckSafety]:
    """Make the pair of models and the step of a safety check, as for `safety`; nothing is asked."""
    from rolellm.checks.safety import CheckSafety, SafetySettings, find_base, pair_models
    from rolellm.llm.guards import Guard
    from rolellm.playing.settings import PlaySettings

    own = {name: settings.pop(name) for name in SafetySettings.__dataclass_fields__ if name in settings}
    chosen = read(SafetySettings, own)
    play = read(PlaySettings, settings)
    if against is None:
        against = find_base(str(model))
    pair = pair_models(LLM.resolve(model, engine=engine), LLM.resolve(against, engine=engine))
    reader = None if guard is None else Guard.of(guard)
    return pair.limit(options or CallOptions()), CheckSafety(chosen, play, roles, reader)


def audit_reward(
    rewards: Any,
    data: Any = "sample",
    *,
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> Run[AuditResult]:
    """Hold rewards, alone and together, against canaries and against pairs of the data.

    >>> run = audit_reward("rolellm.rewards.length", limit=20)
    >>> run.result.beaten
    ['empty', 'echo', 'plain']

    Args:
        rewards: A dotted path or a function, or several.
        data: A config of RoleBench, all splits of which count; a JSON Lines file or rows with its columns.
        data_dir: A local copy of the release.
        out: Folder of the run; by default a temporary one.
        options: Any field of `rolellm.checks.reward.RewardSettings`.

    Raises:
        RecipeError: For a reward that is not there.
        DataError: For data without references.
    """
    from rolellm.checks.reward import AuditReward, RewardSettings
    from rolellm.core.jsonl import read_jsonl
    from rolellm.data.rolebench import load_rolebench
    from rolellm.runs import run_step
    from rolellm.scoring.rows import read_dataset_rows

    is_single = isinstance(rewards, str) or callable(rewards)
    functions = [rewards] if is_single else list(rewards)
    if isinstance(data, str | Path) and Path(data).is_file():
        rows = read_dataset_rows([value for _, value in read_jsonl(Path(data))])
    elif isinstance(data, str | Path):
        tables = load_rolebench(str(data), data_dir=data_dir).values()
        rows = [row for table in tables for row in read_dataset_rows(table)]
    else:
        rows = read_dataset_rows(data)
    return run_step(AuditReward(functions, rows, read(RewardSettings, options)), None, out)

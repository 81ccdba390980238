"""Settings out of range are refused by their name, whichever stage they are of."""

from typing import Any

import pytest

from rolellm.characters.settings import PromptSettings
from rolellm.core.errors import SettingsError
from rolellm.making.settings import BuildSettings, InstructSettings, RespondSettings, SplitRule


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        pytest.param(BuildSettings, {"catchphrases": 21}, "catchphrases", id="many"),
        pytest.param(BuildSettings, {"excerpt_tokens": 10}, "excerpt_tokens", id="few tokens"),
        pytest.param(BuildSettings, {"description": " \n"}, "is empty", id="blank description"),
        pytest.param(InstructSettings, {"per_role": 0}, "per_role", id="no questions"),
        pytest.param(InstructSettings, {"chunk_tokens": 10}, "chunk_tokens", id="tiny chunks"),
        pytest.param(InstructSettings, {"overlap_tokens": 501}, "overlap_tokens", id="overlap of over half"),
        pytest.param(InstructSettings, {"overlap_tokens": -1}, "overlap_tokens", id="negative overlap"),
        pytest.param(InstructSettings, {"script_agnostic_share": 1.1}, "script_agnostic_share", id="share"),
        pytest.param(PromptSettings, {"strategy": "many-shot"}, "strategy: must be 'zero-shot'", id="strategy"),
        pytest.param(PromptSettings, {"demonstrations": -1}, "demonstrations", id="demonstrations"),
        pytest.param(PromptSettings, {"lore": -2}, "lore", id="lore"),
        pytest.param(PromptSettings, {"max_prompt_tokens": 0}, "max_prompt_tokens", id="budget"),
        pytest.param(RespondSettings, {"replies": 0}, "replies", id="no reply"),
        pytest.param(RespondSettings, {"temperature": 0}, "temperature 0 gives the same reply 6 times", id="no chance"),
        pytest.param(SplitRule, {"test_share": 0.0}, "test_share", id="no test rows"),
        pytest.param(SplitRule, {"test_share": 1.0}, "test_share", id="all test rows"),
    ],
)
def test_settings_out_of_range_are_named(kind: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        kind(**options)

"""Work on what strangers wrote, in a process of its own that ends after a few seconds of it.

Nothing within a process stops a regular expression that backtracks, or a template's loops, in any thread. The process
runs this file alone, so it starts in a tenth of a second.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

#: Maximum seconds of work, not of waiting: a busy machine refuses nothing (our choice).
SECONDS: Final = 3.0


def run_limited(function: Callable[..., None], *arguments: Any) -> None:
    """Run a function of this module on JSON values in a process of its own.

    Raises:
        TimeoutError: When it works for more than `SECONDS`, or is killed.
        ValueError: When it raises anything; says what.
    """
    job = json.dumps([SECONDS, function.__name__, arguments])
    ended = subprocess.run([sys.executable, "-P", __file__], input=job, capture_output=True, text=True, check=False)
    if ended.returncode < 0:
        raise TimeoutError(f"takes over {SECONDS:g} seconds")
    if ended.returncode:
        raise ValueError(ended.stderr.strip())


def match_names(pattern: str, names: Sequence[str]) -> None:
    """Match names as PEFT does: whole, and by their end."""
    for name in names:
        re.fullmatch(pattern, name)
        re.match(rf"(.*\.)?({pattern})$", name)


def render_talks(template: str, variables: Mapping[str, Any], talks: Sequence[Sequence[Mapping[str, str]]]) -> None:
    """Render conversations by a chat template, much as transformers does; what the template refuses is not told."""
    from contextlib import suppress
    from datetime import datetime

    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  # As Jinja has it.

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def dump(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = dump
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    with suppress(Exception):
        compiled = environment.from_string(template)
        for talk in talks:
            for asks in (True, False):
                with suppress(Exception):
                    compiled.render(messages=talk, tools=None, documents=None, add_generation_prompt=asks, **variables)


def _main() -> None:
    seconds, name, arguments = json.load(sys.stdin)
    # Its signal ends the process, in the middle of whatever it does.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        globals()[name](*arguments)
    except Exception as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()

"""Context-Instruct: questions and answers of a role out of its profile and its script (the paper's stage 2).

::

    with Client(folder, models) as client:
        result = context_instruct(read_character("characters/ahab"), client)
        write_result(result, folder, client)
"""

from rolellm.construct.context_instruct.filters import Verdict
from rolellm.construct.context_instruct.run import (
    InstructResult,
    Question,
    context_instruct,
    planned_requests,
    read_questions,
    write_result,
)

__all__ = [
    "InstructResult",
    "Question",
    "Verdict",
    "context_instruct",
    "planned_requests",
    "read_questions",
    "write_result",
]

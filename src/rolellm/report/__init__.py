"""What people look at: tables, plots and one self-contained HTML page."""

from rolellm.core.lazy import calls

# `rolellm.report(…)` is a function of the front door, and this package has its name.
calls(__name__, "rolellm.report.build:report")

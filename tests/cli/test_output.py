"""How tables are printed: whole in a file, and with no figure cut on a narrow terminal."""

import pytest
from rich.console import Console

from rolellm.cli import output
from rolellm.core.result import Result
from rolellm.core.table import Table


class Wide(Result):
    """A result whose table has many columns."""

    def __init__(self, *rows: tuple[str, ...]) -> None:
        self.rows = rows

    def tables(self) -> tuple[Table]:
        return (Table.from_rows("Wide", COLUMNS, self.rows),)


COLUMNS = ("", *(f"measure {n} %" for n in range(10)))
ROW = ("canary: null model", *(f"{n}6.5 [35.{n}, 58.2]" for n in range(9)), "–")


def test_a_wide_table_stands_whole_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_result(Wide(ROW, ROW), as_json=False)
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert all(printed.count(f"{n}6.5") == 2 for n in range(9))


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_narrow_terminal_gets_lines_in_place_of_cut_figures(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "make_console", lambda: Console(width=width, force_terminal=True, color_system=None))
    output.print_result(Wide(ROW, ("[b]other[/b]", *ROW[1:])), as_json=False)
    printed = capsys.readouterr().out
    assert "…" not in printed and "┃" not in printed and "–" not in printed
    assert "[b]other[/b]" in printed
    words = " ".join(printed.split())
    assert all(words.count(f"measure {n} %: {n}6.5 [35.{n}, 58.2]") == 2 for n in range(9))

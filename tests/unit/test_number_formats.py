"""Displayed numbers of spreadsheets (B28)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from etl.providers.local.office.number_formats import display


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        ("1234.5", "General", "1234.5"),
        ("0.30000000000000004", "General", "0.3"),
        ("12345678901", "General", "12345678901"),
        ("1E-3", "General", "0.001"),
        ("1234.5", "0", "1235"),
        ("1234.5", "#,##0.00", "1,234.50"),
        ("0.5", "#.##", ".5"),
        ("1234567", "#,##0,", "1,235"),
        ("7", "000", "007"),
        ("0.19", "0%", "19%"),
        ("0.075", "0.0%", "7.5%"),
        ("-1234.5", '#,##0.00 "€";[Red]-#,##0.00 "€"', "-1,234.50 €"),
        ("-5", "0;(0)", "(5)"),
        ("0", '0;-0;"none"', "none"),
        ("-0.001", "0.00", "0.00"),
        ("99.5", "[$€-407] #,##0.00", "€ 99.50"),
        ("99.5", "\\$0.00", "$99.50"),
        ("12345", "0.00E+00", "1.23E+04"),
        ("45351", "yyyy-mm-dd", "2024-02-29"),
        ("45351", "dd.mm.yyyy", "29.02.2024"),
        ("45351", "d mmmm yyyy", "29 February 2024"),
        ("45351.75", "m/d/yy h:mm", "2/29/24 18:00"),
        ("0.3784722222222222", "h:mm AM/PM", "9:05 AM"),
        ("1.5", "[h]:mm:ss", "36:00:00"),
        ("1", "yyyy-mm-dd", "1900-01-01"),
        ("1", "# ?/?", "1"),
        ("#N/A", "0.00", "#N/A"),
        ("1E999999999", "0.00", "1E999999999"),
    ],
)
def test_numbers_are_shown_as_programs_show_them(value: str, code: str, shown: str) -> None:
    assert display(value, code) == shown


def test_a_workbook_may_count_days_from_1904() -> None:
    assert display("43889", "yyyy-mm-dd", is_1904=True) == "2024-02-29"


@given(
    st.decimals() | st.floats().map(str) | st.integers().map(str),
    st.text(alphabet='0#?.,%E+-;"[]$hmsdyAPM/_*\\ @', max_size=40),
)
@example("1e308", "0" * 200 + "." + "0" * 50)
@example("1e-308", "#,##0.00,,,")
def test_any_format_code_has_a_text(value: object, code: str) -> None:
    assert len(display(str(value), code)) < 2_000

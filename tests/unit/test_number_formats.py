"""The display of spreadsheet numbers by their number formats (B28)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from etl.providers.local.office.number_formats import display, display_text


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
        ("0.5", "0 ?/?%", "0.5"),
        ("50", "0\\ \\%", "50 %"),
        ("3.5", '0.0" EUR/h"', "3.5 EUR/h"),
        ("0.0005787", "[s].00", "0.0005787"),
        # thousands and millions
        ("1234567", '0.0,,"M"', "1.2M"),
        ("1500", '0.0,"k"', "1.5k"),
        ("1234567", "0.0,", "1234.6"),
        ("1234567", "#,##0.0,,", "1.2"),
        ("1234567", "0,.0", "1234.6"),
        ("12345678", "0,,", "12"),
        # text between the digits
        ("123456789", "000-00-0000", "123-45-6789"),
        ("15551234567", "(###) ###-####", "(1555) 123-4567"),
        ("1022024", "00\\.00\\.0000", "01.02.2024"),
        ("1234567", "# ##0", "1234 567"),
        ("12.34", '0.0"~"0', "12.3~4"),
        ("7", "#,000", "007"),
        ("1234", "0,00", "1,234"),
        # not a valid number format in Excel
        ("1022024", "00.00.0000", "1022024"),
        # the zero of the format Accounting
        ("0", '_(* #,##0.00_);_(* \\(#,##0.00\\);_(* "-"??_);_(@_)', "-"),
        ("-5", '_(* #,##0.00_);_(* \\(#,##0.00\\);_(* "-"??_);_(@_)', "(5.00)"),
        ("12345", "##0.0E+0", "12.3E+3"),
        ("999999", "0.0E+0", "1.0E+6"),
        ("0.00012", "0.0E-00", "1.2E-04"),
        ("12000", "0.0E-00", "1.2E04"),
        ("0", "0.0E+0", "0.0E+0"),
        # General with text, and formats with a section for text
        ("5", 'General" kg"', "5 kg"),
        ("1234.5", 'General "EUR"', "1234.5 EUR"),
        ("-5", 'General" kg"', "-5 kg"),
        ("-5", '[Blue]General;[Red]-General" kg"', "-5 kg"),
        ("5", '@" x"', "5 x"),
        ("-5", "0.00;@", "-5.00"),
        ("45351", "yyyy-mm-dd;@", "2024-02-29"),
        ("#N/A", "0.00", "#N/A"),
        ("1E999999999", "0.00", "1E999999999"),
    ],
)
def test_numbers_are_displayed_as_in_spreadsheet_programs(value: str, code: str, shown: str) -> None:
    assert display(value, code) == shown


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ('[>=1000]#,##0,"K";0', {"1500": "2K", "999": "999", "-5": "-5"}),
        ("[<1]0.00%;0.0", {"0.5": "50.00%", "5": "5.0"}),
        ('[=1]"yes";[=0]"no";0', {"1": "yes", "0": "no", "7": "7"}),
        ('[=1]"yes";[=0]"no";', {"7": "7"}),
        ("[>100]0.0;[<=100]0.00", {"150": "150.0", "50": "50.00", "-50": "-50.00"}),
        ("[<>0]0.0;0.00", {"3": "3.0", "0": "0.00"}),
        ('[>=1000000]0.0,,"M";[>=1000]0.0,"K";0', {"2000000": "2.0M", "1500": "1.5K", "500": "500", "-5": "-5"}),
        ("[<=9999999]###-####;(###) ###-####", {"5551234": "555-1234", "2065551234": "(206) 555-1234"}),
        # The section for negative numbers has no sign if its condition is the default one.
        ("[>=0]0.00;(0.00)", {"5": "5.00", "-5": "(5.00)"}),
        ("[Blue][>0]0.0;[Red][<0]-0.0;0", {"5": "5.0", "-5": "-5.0", "0": "0"}),
        ("[Red][<0]0.0;0.00", {"-3": "-3.0", "3": "3.00"}),
        ("[<0]-0.0;0.00", {"-3": "-3.0"}),
        ("[>100]0.0;(0.0);0", {"150": "150.0", "-5": "(5.0)", "5": "5"}),
        # no section matches the number, or a condition is invalid
        ("[>100]0.0", {"50": "50"}),
        ("[>100]0.0;[<50]0.00", {"70": "70"}),
        ("[>x]0.00%;0.0", {"5": "5"}),
        ("[>1e999999999]0.00%;0.0", {"5": "5"}),
    ],
)
def test_conditions_select_the_section(code: str, shown: dict[str, str]) -> None:
    assert {value: display(value, code) for value in shown} == shown


@pytest.mark.parametrize(
    ("code", "shown"),
    [('@" x"', "a x"), ('0;-0;0;"Mr. "@', "Mr. a"), ("0.00;@", "a"), ("General", "a"), ("0.00", "a"), (";;;", "a"),
     ("@@", "a"), ("#" * 300 + ";@@", "a")],
)  # fmt: skip
def test_texts_are_displayed_with_the_text_in_the_format(code: str, shown: str) -> None:
    assert display_text("a", code) == shown


@pytest.mark.parametrize(
    ("value", "code", "is_1904", "shown"),
    [("2958465.99999999", "yyyy-mm-dd h:mm:ss", False, "9999-12-31 23:59:59"),
     ("2958466", "yyyy-mm-dd", False, "2958466"),
     ("2957003.99999999", "yyyy-mm-dd", True, "9999-12-31"),
     ("2957004", "yyyy-mm-dd", True, "2957004")],
)  # fmt: skip
def test_dates_end_with_the_year_9999(value: str, code: str, is_1904: bool, shown: str) -> None:  # noqa: FBT001
    assert display(value, code, is_1904=is_1904) == shown


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

"""Faults that users of other engines have reported: each that ours could have keeps its number in a test's name."""

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_field_report_has_a_test_with_its_number_in_the_name() -> None:
    table = (TESTS.parent / "docs" / "field-reports.md").read_text(encoding="utf-8")
    reported = [int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]
    tested: set[int] = set()
    for file in TESTS.rglob("test_*.py"):
        for numbers in re.findall(r"def test_report_(\d+(?:_\d+)*)_", file.read_text(encoding="utf-8")):
            tested.update(map(int, numbers.split("_")))
    assert len(reported) > 20
    assert [number for number in reported if number not in tested] == []

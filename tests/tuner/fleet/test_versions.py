"""Versions as engines tell them."""

import pytest

from tuner.fleet.versions import is_before, version_key


@pytest.mark.parametrize("text", ["0.32.0", "0.32.0+cpu", "v0.32.0", "0.32", "0.32.0.post1"])
def test_a_release_is_its_numbers_whatever_stands_around_them(text: str) -> None:
    assert is_before(text, "0.32.0") is False
    assert is_before(text, "0.33.0") is True


@pytest.mark.parametrize("text", ["0.32.0rc1", "0.32.0rc1.dev3+g017e9f444", "0.32.0.dev1", "0.32.0-dev"])
def test_what_comes_before_a_release_is_before_it_and_after_the_last(text: str) -> None:
    assert is_before(text, "0.32.0") is True
    assert is_before(text, "0.31.9") is False


@pytest.mark.parametrize(
    "text",
    ["b9115", "b9115-68e7ea3", "9115 (68e7ea3)", "0.2.0-dev (build 9115, commit 68e7ea3)", "build: 9115 (68e7ea3)"],
)
def test_a_build_of_llama_cpp_is_its_number_however_it_is_told(text: str) -> None:
    assert version_key(text) == (9115,)
    assert is_before(text, "b9115") is False
    assert is_before(text, "b9116") is True


@pytest.mark.parametrize("text", ["", "dev", "unknown", "main", "b0-unknown", "68e7ea3"])
def test_what_has_no_version_is_before_nothing_and_after_nothing(text: str) -> None:
    assert is_before(text, "b9115") is None
    assert is_before(text, "0.32.0") is None


def test_a_build_and_a_release_have_no_order_between_them() -> None:
    assert is_before("0.32.0", "b9115") is None
    assert is_before("b9115", "0.32.0") is None


def test_a_border_that_is_no_version_is_a_fault_of_the_data() -> None:
    with pytest.raises(ValueError, match="'soon' is no version"):
        is_before("0.32.0", "soon")

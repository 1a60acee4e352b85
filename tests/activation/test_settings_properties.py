"""No text in any variable may raise, or be worth more than one warning for each fault."""

from __future__ import annotations

import pytest

from loongkit.activation import _index, plan, settings

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

KNOWN = sorted(settings.known_variables())
#: What os.environ can hold: no NUL, and single bytes that are no UTF-8 as lone surrogates.
TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=()), max_size=60)
WORDS = st.sampled_from(
    ["1", "0", "on", "OFF", "yes", "No", "true", "", " ", "3", "-1", "99", "debug", "off", "stdout"]
)
NAMES = st.one_of(st.sampled_from(KNOWN), TEXT.map("LOONGKIT_".__add__), TEXT)
ENVIRONMENTS = st.dictionaries(NAMES, st.one_of(WORDS, TEXT), max_size=8)


@budget(max_examples=300, deadline=None)
@given(ENVIRONMENTS)
def test_nothing_raises_and_each_variable_has_at_most_one_problem(environ: dict[str, str]) -> None:
    found = settings.read(environ)
    names = [name for name, _ in found.problems]
    assert len(names) == len(set(names))
    assert set(names) <= set(environ)
    for _name, line in found.problems:
        assert "\n" not in line and len(line) < 1000
    assert set(found.values) <= set(environ) & set(KNOWN)
    decisions = plan.decide(found, plan.entries())
    assert list(decisions) == [row[0] for row in _index.ROWS]


@budget(max_examples=200, deadline=None)
@given(st.sampled_from(KNOWN), TEXT)
def test_a_value_is_taken_or_complained_about_never_both(variable: str, text: str) -> None:
    kind = settings.known_variables()[variable]
    found = settings.Settings()
    found.accept(variable, kind, text, "environment")
    assert (found.value(variable) is None) == (len(found.problems) == 1)


@budget(max_examples=200, deadline=None)
@given(TEXT)
def test_a_bool_is_one_of_six_words(text: str) -> None:
    word = text.strip().lower()
    expected = True if word in ("1", "on", "yes") else False if word in ("0", "off", "no") else None
    assert settings.parse_bool(text) is expected

"""Translators by name, and what all of them have in common."""

from __future__ import annotations

import pytest

from quarterdeck.harness.acp.translate import kilo_acp
from quarterdeck.harness.base import BookTranslator, Translator
from quarterdeck.harness.registry import TRANSLATORS, translator
from quarterdeck.harness.sayask.translate import sayask


@pytest.mark.parametrize("agent", [*TRANSLATORS, "acp:some command"])
def test_each_session_has_a_translator_of_its_own(agent: str) -> None:
    assert translator(agent) is not translator(agent)


def test_a_name_that_nobody_knows_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        translator("nobody")


@pytest.mark.parametrize("make", [*[lambda name=name: translator(name) for name in TRANSLATORS], kilo_acp, sayask])
def test_nothing_is_kept_in_a_dictionary_of_attributes(make) -> None:
    """Beyond thirty attributes that makes every call of a method twice as dear, and nothing shows it."""
    one: Translator = make()
    assert not hasattr(one, "__dict__"), type(one)


def test_tables_are_shared() -> None:
    one, other = translator("claude"), translator("claude")
    assert isinstance(one, BookTranslator)
    assert isinstance(other, BookTranslator)
    assert one.readers is other.readers

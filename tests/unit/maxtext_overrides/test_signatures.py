"""Overrides are rejected when what they replace is not what was tested."""

import logging

import pytest

from maxtext_overrides.upstream import signatures
from maxtext_overrides.upstream.override import Override, OverrideError, resolve
from maxtext_overrides.upstream.signatures import check

SYMBOL = "maxtext_overrides.upstream.override.resolve"


def declared(**changes):
    known = {
        "symbol": SYMBOL,
        "use": "called",
        "sha256": signatures.source_hash(resolve),
        "why": "a test",
        "delete_when": "never",
    }
    return Override(**(known | changes))


def test_unchanged_symbol_passes():
    check([declared()])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sha256": "0" * 64}, r"resolve has another source: expected sha256 000000000000\.\.\."),
        ({"symbol": SYMBOL + "d"}, "resolved does not exist"),
        ({"symbol": "maxtext_overrides.nowhere.f"}, "nowhere.f does not exist"),
    ],
)
def test_a_difference_names_symbol_expected_found_and_versions(changes, expected):
    with pytest.raises(OverrideError, match=expected) as error:
        check([declared(**changes)])
    assert "tested with maxtext 0.2.5; installed: " in str(error.value)
    assert "rlax.trainer.allow_untested=true" in str(error.value)


def test_what_is_no_function_any_more_is_rejected() -> None:
    symbol = "maxtext_overrides.upstream.signatures.log"
    with pytest.raises(OverrideError, match=r"signatures\.log cannot be read"):
        check([declared(symbol=symbol)])


def test_names_alone_are_left_to_the_comparison_of_versions() -> None:
    check([declared(sha256="", names=("nothing",))])


def test_every_difference_is_named_at_once():
    with pytest.raises(OverrideError) as error:
        check([declared(sha256="0" * 64), declared(symbol=SYMBOL + "d")])
    assert "another source" in str(error.value)
    assert "resolved does not exist" in str(error.value)


def test_allow_untested_warns_instead(caplog):
    with caplog.at_level(logging.WARNING, logger="rlax.maxtext"):
        check([declared(sha256="0" * 64)], allow_untested=True)
    assert "another source" in caplog.text

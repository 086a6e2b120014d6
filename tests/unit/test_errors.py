"""The failure vocabulary: one line for people, and whose fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra import errors
from orchestra.errors import CallError, ConfigError, Fault, OrchestraError, ServiceError


def test_a_message_says_where_what_and_what_to_do() -> None:
    error = ConfigError("unknown key sft.epoch", where="params.yaml", fix="remove it")
    assert str(error) == "params.yaml: unknown key sft.epoch — remove it"
    assert (error.what, error.where, error.fix) == ("unknown key sft.epoch", "params.yaml", "remove it")


def test_where_and_fix_may_be_left_out() -> None:
    assert str(ServiceError("the port is taken")) == "the port is taken"


@given(st.text(), st.text(), st.text())
def test_it_is_one_line_whatever_went_in(what: str, where: str, fix: str) -> None:
    assert len(str(OrchestraError(what, where=where, fix=fix)).splitlines()) <= 1


def test_every_error_names_a_fault() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OrchestraError)]
    assert len(kinds) > 5
    assert all(isinstance(kind.fault, Fault) and isinstance(kind.retryable, bool) for kind in kinds)


@pytest.mark.parametrize("kind", [ConfigError, errors.DataError, errors.BudgetError])
def test_what_the_caller_did_wrong_is_not_retried(kind: type[OrchestraError]) -> None:
    assert kind.fault is Fault.CALLER and not kind.retryable


def test_a_malformed_call_is_the_models_business_not_a_persons() -> None:
    assert not issubclass(CallError, OrchestraError)

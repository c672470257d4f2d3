"""Requests made up from the service's own description: none of them may be a fault of the service."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

from tests.studio.serving import Serving


@pytest.fixture
def described(server: Serving) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("described")


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_is_a_fault(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=[not_a_server_error], timeout=120)

"""Requests made up from the service's own description: none of them may be a fault of the service."""

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error

from tests.studio.serving import PATIENCE, Serving

EXAMPLES = 25  # of each operation


def test_no_request_is_a_fault(server: Serving) -> None:
    described = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in described.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/v1/networks", "/v1/domains", "/v1/answers", "/metrics"}
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=[not_a_server_error], timeout=PATIENCE)

        check()

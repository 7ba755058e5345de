"""Can a client without a token use up what others without a token may do?"""

import os
import time

import pytest
from clients import http_infer
from test_access import EVERYTHING, ONE, guarded, token
from users import as_user

RULES = '[anonymous]\nscopes = ["infer"]\nrequests_per_second = 1\nburst = 2\n'


def until_refused(url: str) -> list[int]:
    """The statuses of requests up to the first that is refused. On a busy machine the quota grows meanwhile."""
    statuses, deadline = [], time.monotonic() + 60
    while 429 not in statuses and time.monotonic() < deadline:
        statuses.append(http_infer(url, "identity_fp32", ONE).status)
    return statuses


def test_each_user_without_a_token_has_quotas_of_its_own(launcher):
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with guarded(launcher, "strangers", token("all", EVERYTHING) + RULES) as server:
        greedy = as_user(65534, lambda: until_refused(server.http))
        assert greedy[:2] == [200, 200] and greedy[-1] == 429, greedy
        assert http_infer(server.http, "identity_fp32", ONE).status == 200
        assert as_user(65533, lambda: http_infer(server.http, "identity_fp32", ONE).status) == 200

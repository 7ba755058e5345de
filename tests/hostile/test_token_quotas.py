"""Can a client without a token use up what others without a token may do?"""

import os

import pytest
from clients import http_infer
from test_access import EVERYTHING, ONE, guarded, token
from users import as_user

RULES = '[anonymous]\nscopes = ["infer"]\nrequests_per_second = 1\nburst = 2\n'


def test_each_user_without_a_token_has_quotas_of_its_own(launcher):
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with guarded(launcher, "strangers", token("all", EVERYTHING) + RULES) as server:
        greedy = as_user(65534, lambda: [http_infer(server.http, "identity_fp32", ONE).status for _ in range(10)])
        assert greedy[:2] == [200, 200] and greedy[-1] == 429, greedy
        assert http_infer(server.http, "identity_fp32", ONE).status == 200
        assert as_user(65533, lambda: http_infer(server.http, "identity_fp32", ONE).status) == 200

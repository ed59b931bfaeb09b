"""Parts that ask a server, or that a program asks over HTTP.

Rewards: ``http_verifier`` and ``llm_judge``, see docs/judges.md. Environments: ``http`` and
``program``, see docs/environments.md.
"""

from __future__ import annotations

from rlax_http.checks import check_judge, check_server, check_verifier
from rlax_http.environment import Harness, HarnessConfig
from rlax_http.judge import JudgeConfig, LlmJudge
from rlax_http.program import Program, ProgramConfig, check_program
from rlax_http.verifier import HttpVerifier, VerifierConfig
from rlax_plugin.api import Extension, hookimpl


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {
        "http_verifier": Extension(
            VerifierConfig, HttpVerifier, check=check_verifier, check_start=check_server
        ),
        "llm_judge": Extension(JudgeConfig, LlmJudge, check=check_judge, check_start=check_server),
    }


@hookimpl
def rlax_register_environment() -> dict[str, Extension]:
    return {
        "http": Extension(HarnessConfig, Harness, check_start=check_server),
        "program": Extension(ProgramConfig, Program, check_start=check_program),
    }

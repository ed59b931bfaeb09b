"""Secrets under many names, and parts of a run that repeat all of them wherever they can.

Reward ``repeating`` prints its secrets and raises an error with them, for a share of the samples.
Observer ``repeating`` prints and logs those of the environment, as each process of the run does.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import Field

from rlax_plugin.api import Extension, Observer, Prompt, hookimpl
from rlax_plugin.config import Section
from rlax_plugin.testing.trainer import BigramConfig, BigramTrainer

log = logging.getLogger("rlax.planted")

_NAMES = (
    *("api_key", "apiKey", "key", "judge_key", "token", "auth_token", "client_secret", "secret"),
    *("password", "db_passwd", "passphrase", "credentials", "Authorization", "cookie"),
    *("private_key", "access_token", "bearer", "signature"),
)
_HEADERS = ("Authorization", "X-API-Key", "Proxy-Authorization", "X-Team")
_VARIABLES = ("PLANTED_API_KEY", "PLANTED_TOKEN", "PLANTED_DB_PASSWORD", "PLANTED_SECRET_KEY_2")
_PROXY = "PLANTED_PROXY"


def _value(name: str) -> str:
    return f"planted-{name.lower().replace('_', '-')}-7q9z"


ENVIRONMENT = {name: _value(name) for name in _VARIABLES} | {
    _PROXY: f"http://me:{_value(_PROXY)}@proxy:1"
}
HF_TOKEN = _value("hf_access_token")
OPTIONS: dict[str, Any] = {name: _value(name) for name in _NAMES} | {
    "http": {"headers": {name: f"Bearer {_value(f'header-{name}')}" for name in _HEADERS}},
    "judges": [{"name": "j", "api_keys": [_value("first-of-list"), _value("second-of-list")]}],
    "url": f"https://me:{_value('url-password')}@host/x?v=2&access_token={_value('query')}",
    "arguments": f"--port=80 --api-key={_value('argument')}",
    "max_tokens": 1024,
    "tokenizer_path": "org/planted-tokenizer",
}
SECRETS = (
    HF_TOKEN,
    *map(_value, (*_VARIABLES, _PROXY, *_NAMES, *(f"header-{name}" for name in _HEADERS))),
    *map(_value, ("first-of-list", "second-of-list", "url-password", "query", "argument")),
)


def _print_environment() -> None:
    said = [os.environ.get(name, "") for name in ENVIRONMENT]
    print("printed", *said)
    print(f"printed {said}", file=sys.stderr)


class RepeatingConfig(Section):
    options: dict[str, Any] = Field(default_factory=dict)
    share: float = 0.0  # of the samples, for which it raises


class Repeating:
    """Pays for an even number of characters, or raises an error that repeats its options."""

    def __init__(self, config: RepeatingConfig):
        self._config, self._calls = config, 0

    def __call__(self, prompt: Prompt, completion: str) -> float:
        self._calls += 1
        if self._calls * self._config.share % 1 < self._config.share:
            _print_environment()
            print(f"called with {self._config.options}")
            said = self._config.options | {"env": dict(os.environ)}
            first = self._calls // 2 % len(SECRETS)
            raise ValueError(f"rejected: {[*_texts(said)][first:]} {self._config.options!r}")
        return float(len(completion) % 2 == 0)


class RepeatingObserver(Observer):
    def __init__(self, config: RepeatingConfig):
        self._options = config.options

    def on_step_end(self, step: int, metrics: Any) -> None:
        _print_environment()
        log.warning("step %s with %s and %s", step, self._options, {**os.environ})

    def on_run_error(self, error: str) -> None:
        Path("reported.txt").write_text(error)  # as one that sends it to a chat


class PlantedTrainer(BigramTrainer):
    """The toy trainer; it accepts MaxText's keys."""

    @staticmethod
    def check(config: BigramConfig, context: Any) -> None: ...


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [str(value)]


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"repeating": Extension(RepeatingConfig, lambda config, context: Repeating(config))}


@hookimpl
def rlax_register_observer() -> dict[str, Extension]:
    def build(config: RepeatingConfig, context: Any) -> Observer:
        return RepeatingObserver(config)

    return {"repeating": Extension(RepeatingConfig, build)}


@hookimpl
def rlax_register_trainer() -> dict[str, Extension]:
    return {"planted": Extension(BigramConfig, PlantedTrainer.build)}


_print_environment()  # of each process: the trainer, workers, and those of rewards

"""The messages between the trainer and a reward process: JSON data only.

Everything that a process sends is checked where it is read (``checked``), by the same rules by
which the process itself checks the values that a reward has returned. A ``Witness`` names the
present job even if the process hangs.
"""

from __future__ import annotations

import base64
import json
import math
import mmap
import operator
import struct
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from rlax_plugin.errors import PluginError
from rlax_plugin.ports.environment import Answer
from rlax_plugin.text.harmless import hidden_character, one_line
from rlax_plugin.types import EMPTY, Episode, Prompt, Sampled, Score, Trajectory, Turn

LONGEST = 1 << 20
"""Bytes of a message of an environment, and of a sample's answer without its token rewards."""

ON_LOOP = b"~"
"""Prefix of a line for the event loop of a reward process, and not for its main thread."""

MOST_METRICS = 32
_LONGEST_NAME = 64
_ROUNDED = 1 + 1e-9  # sums of products may be a little larger than the bound of each
_NONE = np.zeros(0, np.float32), np.zeros(0, np.int32)  # log-probs, versions
_encode = json.JSONEncoder(separators=(",", ":")).encode


def line(message: Mapping[str, Any]) -> bytes:
    """Returns a message as it is sent."""
    return _encode(message).encode() + b"\n"


def packed(array: Any, dtype: str) -> str:
    """Returns numbers as text, in a third of the time and size of a JSON list."""
    return base64.b64encode(np.ascontiguousarray(array, dtype).tobytes()).decode()


def unpacked(text: str, dtype: str) -> np.ndarray:
    """Returns the numbers that ``packed`` was given.

    Raises:
      ValueError: it is no such text.
    """
    return np.frombuffer(base64.b64decode(text, validate=True), dtype).copy()


def prompt_to(prompt: Prompt) -> dict[str, Any]:
    """Returns a prompt as JSON.

    Raises:
      PluginError: its metadata cannot be written as JSON.
    """
    try:
        json.dumps(dict(prompt.metadata))
    except (TypeError, ValueError) as error:
        reason = f"has metadata that JSON cannot hold: {one_line(str(error))}"
        raise PluginError(f"prompt {prompt.id!r} {reason}") from None
    return {
        "id": prompt.id,
        "tokens": packed(prompt.tokens, "<i4"),
        "text": prompt.text,
        "reference": prompt.reference,
        "metadata": dict(prompt.metadata),
    }


def prompt_from(message: Mapping[str, Any]) -> Prompt:
    """Returns the prompt that ``prompt_to`` was given."""
    return Prompt(**{**message, "tokens": unpacked(message["tokens"], "<i4")})


def _turn(given: np.ndarray, tokens: np.ndarray, finish: Any) -> Turn:
    return Turn(given, Sampled(0, tokens, *_NONE, finish))


def episode_to(episode: Episode, prompt: Prompt, tokens: bool) -> dict[str, Any]:
    """Returns an episode as JSON; its turns only with ``tokens``, their lengths always.

    Log-probs, versions, seeds, workers and side channels are not sent.
    """
    shown: dict[str, Any] = {
        "index": episode.index,
        "text": episode.text,
        "ended": episode.ended,
        "lengths": lengths_of(episode),
    }
    if tokens:
        shown |= {"texts": episode.texts, "order": episode.order}
        shown["trajectories"] = [
            [
                {
                    "given": None if turn.given is prompt.tokens else packed(turn.given, "<i4"),
                    "tokens": packed(turn.sampled.tokens, "<i4"),
                    "finish": turn.sampled.finish,
                }
                for turn in one.turns
            ]
            for one in episode.trajectories
        ]
    return shown


def episode_from(message: Mapping[str, Any], prompt: Prompt) -> Episode:
    """Returns the episode given to ``episode_to``, without log-probs, and turns only if sent."""

    def turn(one: Mapping[str, Any]) -> Turn:
        given = prompt.tokens if one["given"] is None else unpacked(one["given"], "<i4")
        return _turn(given, unpacked(one["tokens"], "<i4"), one["finish"])

    trajectories = message.get("trajectories", ())
    return Episode(
        index=message["index"],
        trajectories=tuple(Trajectory(tuple(map(turn, turns))) for turns in trajectories),
        text=message["text"],
        ended=message["ended"],
        texts=tuple(message.get("texts", ())),
        order=tuple(message.get("order", ())),
    )


def lengths_of(episode: Episode) -> list[int]:
    """Returns the number of sampled tokens of each turn."""
    return [len(sampled.tokens) for sampled in episode.sampled]


def answer_to(answer: Answer) -> dict[str, Any]:
    """Returns an answer of the policy as JSON."""
    return {"tokens": packed(answer.tokens, "<i4"), "text": answer.text, "finish": answer.finish}


def answer_from(message: Mapping[str, Any]) -> Answer:
    """Returns the answer that ``answer_to`` was given."""
    return Answer(unpacked(message["tokens"], "<i4"), message["text"], message["finish"])


def score_to(score: Score) -> dict[str, Any]:
    """Returns a score as JSON."""
    shown: dict[str, Any] = {"total": score.total, "parts": score.parts}
    if score.metrics:
        shown["metrics"] = dict(score.metrics)
    if score.token_rewards:
        shown["tokens"] = [packed(one, "<f8") for one in score.token_rewards]
    return shown


def score_from(
    message: Mapping[str, Any],
    weights: Sequence[float],
    lengths: Sequence[int],
    limit: float = math.inf,
) -> Score:
    """Returns the score that ``score_to`` was given, if it is valid.

    Args:
      message: the JSON object.
      weights: weights of the rewards.
      lengths: number of sampled tokens of each turn.
      limit: largest absolute value that a reward may return.

    Raises:
      ValueError, TypeError, LookupError: it is not a valid score.
    """
    parts = tuple(map(float, message["parts"]))
    if len(parts) != len(weights):
        raise ValueError(f"{len(parts)} parts of {len(weights)} rewards")
    for part in parts:
        within(part, limit)
    total = finite(message["total"])
    if total != weighted(weights, parts):
        raise ValueError("the total is not that of its parts")
    if len(message) == 2:  # most of them
        return Score(total, parts)
    found = [unpacked(one, "<f8") for one in message.get("tokens", ())]
    score = checked(total, message.get("metrics", EMPTY), found, lengths)
    most = limit * sum(map(abs, weights)) * _ROUNDED if math.isfinite(limit) else limit
    for one in score.token_rewards:
        if one.size:
            within(np.abs(one).max(), most, "token_rewards")
    return Score(score.total, parts, score.metrics, score.token_rewards)


def finite(total: Any) -> float:
    """Returns a reward as a finite number.

    Raises:
      ValueError, TypeError: it is not one; says why.
    """
    total = float(total)
    if not math.isfinite(total):
        raise ValueError(f"the reward is {total}")
    return total


def weighted(weights: Sequence[float], parts: Sequence[float]) -> float:
    """Returns the weighted sum of the values that rewards have returned."""
    return sum(map(operator.mul, weights, parts), 0.0)


def within(value: Any, limit: float, name: str = "a reward") -> float:
    """Checks that the value of a reward is a finite number in bounds.

    Args:
      value: the value.
      limit: ``rlax.reward_limit``.
      name: name of the reward, for the message.

    Raises:
      ValueError, TypeError: it is not; says why.
    """
    if isinstance(value, str | bytes | bytearray):  # such as a piece of the completion
        raise TypeError(f"{name} returned a text, and must return a number")
    try:
        value = float(value)
    except OverflowError:
        raise ValueError(f"{name} returned a whole number that is too large") from None
    if not math.isfinite(value):
        raise ValueError(f"the reward is {value}: {name} must return a finite number")
    if abs(value) > limit:
        raise ValueError(
            f"the reward is {value:g}: {name} may return from {-limit:g} to {limit:g} "
            "(rlax.reward_limit)"
        )
    return value


def checked(
    total: Any, metrics: Any, token_rewards: Sequence[Any], lengths: Sequence[int]
) -> Score:
    """Returns a score without parts, after checking its values.

    Raises:
      ValueError, TypeError: it is not a valid score; says why.
    """
    total = finite(total)
    of_turns = [np.asarray(one, np.float64) for one in token_rewards]
    if of_turns and [one.shape for one in of_turns] != [(length,) for length in lengths]:
        raise ValueError(
            f"token_rewards have the shapes {[one.shape for one in of_turns][:8]}, but the turns' "
            f"sampled tokens are {list(lengths)[:8]}"
        )
    if not all(np.isfinite(one).all() for one in of_turns):
        raise ValueError("token_rewards are not all finite")
    return Score(total, (), checked_metrics(metrics), tuple(of_turns))


def checked_metrics(metrics: Any) -> Mapping[str, float]:
    """Returns metrics by name, after checking them.

    Raises:
      ValueError, TypeError: they are not valid; says why.
    """
    if not metrics:
        return EMPTY
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics are a {type(metrics).__name__}, and must be a mapping")
    if len(metrics) > MOST_METRICS:
        raise ValueError(f"there are {len(metrics)} metrics, and may be {MOST_METRICS}")
    found = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise TypeError(f"a metric's name is a {type(name).__name__}, and must be text")
        hidden = hidden_character(name)
        if not 0 < len(name) <= _LONGEST_NAME or "/" in name or hidden:
            raise ValueError(
                f"a metric has the name {name[:100]!r}: it must be of 1 to {_LONGEST_NAME} "
                "printable characters without a slash" + (f", and has {hidden}" if hidden else "")
            )
        found[name] = float(value)
        if not math.isfinite(found[name]):
            raise ValueError(f"metric {name!r} is {found[name]}")
    return found


_SIZE = 16
_JOB = struct.Struct("<Q")


class Witness:
    """The shared memory.

    Attributes:
      reward: number of the reward that the main thread calls, or called last.
      job: number of the job whose step runs on the event loop; 0 if there is none.
    """

    def __init__(self, descriptor: int):
        self._memory = mmap.mmap(descriptor, _SIZE)

    @property
    def reward(self) -> int:
        return self._memory[0]

    @reward.setter
    def reward(self, number: int) -> None:
        self._memory[0] = min(number, 255)

    @property
    def job(self) -> int:
        return _JOB.unpack_from(self._memory, 8)[0]

    @job.setter
    def job(self, number: int) -> None:
        _JOB.pack_into(self._memory, 8, number)


def shared() -> IO[bytes]:
    """Returns a file without a name, for the ``Witness`` of both sides."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    file.write(bytes(_SIZE))
    file.flush()
    return file

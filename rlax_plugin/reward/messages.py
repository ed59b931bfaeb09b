"""The messages between the trainer and a reward process: JSON data only.

Everything that a process sends is checked where the trainer reads it (``score_from``,
``outcome_from``), by the rules by which the process checks the values that code of the user's has
returned, so that an error names the reward. A ``Witness`` names the
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
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import PluginError
from rlax_plugin.base.text.harmless import harmless, hidden_character, one_line
from rlax_plugin.base.types import (
    EMPTY,
    Episode,
    Prompt,
    Sampled,
    Score,
    Trajectory,
    Turn,
    Unscored,
)
from rlax_plugin.ports.environment import Answer, Given, Outcome, messages_of

LONGEST = 1 << 20
"""Bytes of a message of an environment, and of a sample's answer without its token rewards."""

LONGEST_ERROR = 1200  # characters; the process has cut it already

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
        text = f"prompt {prompt.id!r} has metadata that JSON cannot hold: {one_line(str(error))}"
        raise PluginError(text) from None
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
                for turn in trajectory.turns
            ]
            for trajectory in episode.trajectories
        ]
    return shown


def episode_from(message: Mapping[str, Any], prompt: Prompt) -> Episode:
    """Returns the episode given to ``episode_to``, without log-probs, and turns only if sent."""

    def turn(sent: Mapping[str, Any]) -> Turn:
        given = prompt.tokens if sent["given"] is None else unpacked(sent["given"], "<i4")
        return Turn(given, Sampled(0, unpacked(sent["tokens"], "<i4"), *_NONE, sent["finish"]))

    trajectories = message.get("trajectories", ())
    return Episode(
        index=message["index"],
        trajectories=tuple(Trajectory(tuple(map(turn, turns))) for turns in trajectories),
        text=message["text"],
        ended=Ending(message["ended"]),
        texts=tuple(message.get("texts", ())),
        order=tuple(message.get("order", ())),
    )


def lengths_of(episode: Episode) -> list[int]:
    """Returns the number of sampled tokens of each turn."""
    return [len(sampled.tokens) for sampled in episode.sampled]


def answer_to(answer: Answer) -> dict[str, Any]:
    """Returns an answer of the policy as JSON."""
    return {
        "tokens": packed(answer.tokens, "<i4"),
        "text": answer.text,
        "finish": answer.finish,
        "logprobs": packed(answer.logprobs, "<f4"),
        "version": answer.version,
    }


def answer_from(message: Mapping[str, Any]) -> Answer:
    """Returns the answer that ``answer_to`` was given."""
    return Answer(
        unpacked(message["tokens"], "<i4"),
        message["text"],
        message["finish"],
        unpacked(message["logprobs"], "<f4"),
        message["version"],
    )


def given_to(given: Given) -> Any:
    """Returns a context or a turn as JSON.

    Raises:
      ValueError: it is neither text, nor messages, nor token ids.
    """
    if isinstance(given, str):
        return given
    if (messages := messages_of(given)) is None:
        tokens = np.asarray(given)
        whole = not tokens.size or np.issubdtype(tokens.dtype, np.integer)
        if tokens.ndim != 1 or not whole or np.any(tokens != tokens.astype(np.int32)):
            raise ValueError("what is given must be text, messages, or a list of token ids")
        return {"tokens": packed(tokens, "<i4")}
    try:
        return {"messages": [dict(message) for message in messages]}
    except (TypeError, ValueError):
        raise ValueError("each message must be a mapping with a role and a content") from None


def given_from(message: Any) -> Given:
    """Returns what ``given_to`` was given."""
    if isinstance(message, str):
        return message
    if "messages" not in message:
        return unpacked(message["tokens"], "<i4").tolist()
    messages = message["messages"]
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        raise ValueError("these are no messages")
    return messages


def sample_options_from(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the further arguments of ``PlayedEpisode.sample`` in a process's question.

    Raises:
      ValueError: they are of other types.
    """
    most, tools = message.get("most_tokens"), message.get("tools", [])
    if not isinstance(most, int | None) or isinstance(most, bool):
        raise ValueError("most_tokens is no whole number")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("these are no tools")
    return {"most_tokens": most, "tools": tools}


def outcome_to(outcome: Any, text: str, limit: float) -> dict[str, Any]:
    """Returns an outcome as JSON, after checking it.

    Args:
      text: the text of an outcome without one.
      limit: largest absolute value of a reward.
    """
    if not isinstance(outcome, Outcome):
        raise TypeError(f"play returned a {type(outcome).__name__}, and must return an Outcome")
    if outcome.ended not in ("done", "cut"):
        raise ValueError(f"an outcome ended {outcome.ended!r}: 'done' and 'cut' are allowed")
    shown = {
        "text": text if outcome.text is None else str(outcome.text),
        "rewards": [within(reward, limit, "the environment") for reward in outcome.rewards],
        "reward": within(outcome.reward, limit, "the environment"),
        "ended": str(outcome.ended),
        "metrics": dict(checked_metrics(outcome.metrics)),
        "ending": checked_ending(outcome.ending),
    }
    if (size := len(line(shown))) > LONGEST:
        raise ValueError(f"its outcome has {size} bytes, and may have {LONGEST}")
    return shown


def outcome_from(message: Mapping[str, Any], limit: float) -> Outcome:
    """Returns the outcome that ``outcome_to`` was given, if it is valid."""
    rewards = tuple(within(reward, limit, "the environment") for reward in message["rewards"])
    if not isinstance(message["text"], str):
        raise TypeError("the text of an outcome is no text")
    text, ended = harmless(message["text"]), message["ended"]
    if len(text) > LONGEST:
        raise ValueError(f"the text of an outcome has {len(text)} characters")
    if ended not in ("done", "cut"):
        raise ValueError("an outcome is neither done nor cut")
    reward = within(message["reward"], limit, "the environment")
    metrics, ending = checked_metrics(message["metrics"]), checked_ending(message["ending"])
    return Outcome(text, rewards, ended, metrics, reward, ending)


def score_to(
    parts: Sequence[float],
    metrics: Mapping[str, float],
    token_rewards: Sequence[np.ndarray],
    ending: Ending | None = None,
) -> dict[str, Any]:
    """Returns a score as JSON, without the total, which follows from its parts."""
    shown: dict[str, Any] = {"parts": parts}
    if metrics:
        shown["metrics"] = dict(metrics)
    if token_rewards:
        shown["tokens"] = [packed(turn, "<f8") for turn in token_rewards]
    if ending is not None:
        shown["ending"] = ending
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
    parts = tuple([within(part, limit) for part in message["parts"]])
    if len(parts) != len(weights):
        raise ValueError(f"{len(parts)} parts of {len(weights)} rewards")
    total = sum(map(operator.mul, weights, parts), 0.0)
    if not math.isfinite(total):
        raise ValueError(f"the reward is {total}")
    if len(message) == 1:  # most of them
        return Score(total, parts)
    most = limit * sum(map(abs, weights)) * _ROUNDED if math.isfinite(limit) else limit
    turns = [unpacked(turn, "<f8") for turn in message.get("tokens", ())]
    return Score(
        total,
        parts,
        checked_metrics(message.get("metrics", EMPTY)),
        _checked_tokens(turns, lengths, most, "token_rewards"),
        checked_ending(message.get("ending")),
    )


def unscored_from(message: Mapping[str, Any]) -> Unscored:
    """Returns the error of a sample, if it is valid.

    Raises:
      ValueError, TypeError, LookupError: it is not.
    """
    ending = Ending(message["ending"])
    if not ending.unscored:
        raise ValueError(f"an error with the ending {ending}")
    return Unscored(one_line(message["error"], LONGEST_ERROR), ending)


def checked_ending(ending: Any) -> Ending | None:
    """Returns the ending of a score or an outcome, after checking it.

    Raises:
      ValueError: it is not one that a reward or an environment may give.
    """
    if ending is None:
        return None
    if not (checked_one := Ending(ending)).by_reward:
        raise ValueError(f"{checked_one} is no ending that a score or an outcome may have")
    return checked_one


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
    score: Score, lengths: Sequence[int], limit: float = math.inf, name: str = "a reward"
) -> Score:
    """Returns a score that a reward has returned, without parts, after checking its values.

    Args:
      lengths, limit: see ``score_from``.
      name: name of the reward, for messages.

    Raises:
      ValueError, TypeError: it is not a valid score; says why.
    """
    total = within(score.total, limit, name)
    turns = _checked_tokens(score.token_rewards, lengths, limit, f"{name} for a token")
    return Score(total, (), checked_metrics(score.metrics), turns, checked_ending(score.ending))


def _checked_tokens(
    token_rewards: Sequence[Any], lengths: Sequence[int], limit: float, name: str
) -> tuple[np.ndarray, ...]:
    turns = tuple(np.asarray(turn, np.float64) for turn in token_rewards)
    shapes = [turn.shape for turn in turns]
    if turns and shapes != [(length,) for length in lengths]:
        raise ValueError(
            f"token_rewards have the shapes {shapes[:8]}, but the turns' sampled tokens are "
            f"{list(lengths)[:8]}"
        )
    for turn in turns:
        if not np.isfinite(turn).all():
            raise ValueError("token_rewards are not all finite")
        if turn.size:
            within(turn[np.abs(turn).argmax()], limit, name)
    return turns


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
    values = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise TypeError(f"a metric's name is a {type(name).__name__}, and must be text")
        hidden = hidden_character(name)
        if not 0 < len(name) <= _LONGEST_NAME or "/" in name or hidden:
            raise ValueError(
                f"a metric has the name {name[:100]!r}: it must be of 1 to {_LONGEST_NAME} "
                "printable characters without a slash" + (f", and has {hidden}" if hidden else "")
            )
        values[name] = float(value)
        if not math.isfinite(values[name]):
            raise ValueError(f"metric {name!r} is {values[name]}")
    return values


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements of a process's rewards, which it reports once it has started.

    Attributes:
      group: True if a reward sees all episodes of a prompt at once.
      tokens: True if a reward sees tokens.
      waits: True if a reward is async.
    """

    group: bool = False
    tokens: bool = False
    waits: bool = False


_SIZE = 16
_JOB = struct.Struct("<Q")


class Witness:
    """Memory in which a reward process names its current job, readable even if it hangs.

    Any code in the process may write there, so the trainer uses it only as a hint at which job is
    to blame.

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

"""Messages of one JetStream request: each has what its completions have gained since the last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from rlax_plugin.api import (
    PromptSource,
    Sampled,
    WorkerError,
    completion_text,
    stable,
    stop_strings_of,
    storable,
    whole_tokens,
    worth_decoding,
)


class RequestError(WorkerError):
    """A request that no worker of this run can answer."""


class Replies:
    """Sends the messages of a request, through JetStream's return channel.

    Text that a longer completion may change is held back: what is made of single bytes, and what a
    stop string may begin with. So the texts of all messages, one behind the other, are the text of
    the whole completion.

    Args:
      request: JetStream's ``ActiveRequest``.
      samples: number of its completions.
      source: the prompt source; called on the thread that sends.
      later: runs a function on that thread, in order.
    """

    def __init__(
        self,
        request: Any,
        samples: int,
        source: Callable[[], PromptSource],
        later: Callable[[Callable[[], None]], None],
    ):
        self._channel, self._later, self._source = request.return_channel, later, source
        self._as_text = isinstance(request.prefill_content, str)
        self._tokens, self._texts = [0] * samples, [""] * samples  # sent so far, of each sample
        self._lock = threading.Lock()
        self._newest: Sequence[Sampled] | None = None  # not sent yet

    def so_far(self, samples: Sequence[Sampled]) -> None:
        """Sends unfinished completions; the newest ones, if some still wait to be sent."""
        with self._lock:
            waits, self._newest = self._newest is not None, samples
        if not waits:
            self._later(self._send_newest)

    def whole(self, samples: Sequence[Sampled]) -> None:
        """Sends what is missing of the finished completions, and ends the answer."""
        self._later(lambda: self._end(samples))

    def _send_newest(self) -> None:
        with self._lock:
            samples, self._newest = self._newest, None
        if samples and any(
            worth_decoding(len(s.tokens), sent) if self._as_text else len(s.tokens) > sent
            for s, sent in zip(samples, self._tokens, strict=True)
        ):
            self._send(samples)

    def _end(self, samples: Sequence[Sampled]) -> None:
        with self._lock:
            self._newest = None
        self._send(samples)
        self._channel.close()

    def _send(self, samples: Sequence[Sampled]) -> None:
        from jetstream.core.utils.return_sample import ReturnSample

        found = []
        for index, sample in enumerate(samples):
            text = [self._new_text(index, sample)] if self._as_text else []
            found.append(ReturnSample(text, sample.tokens[self._tokens[index] :].tolist()))
            self._tokens[index] = len(sample.tokens)
        self._channel.add_result(found)

    def _new_text(self, index: int, sample: Sampled) -> str:
        source, sent, tokens = self._source(), self._texts[index], sample.tokens
        if sample.finish is None:
            tokens = tokens[: whole_tokens(source, tokens)]
        text = storable(completion_text(source, tokens))
        if sample.finish is None:
            text = stable(text, stop_strings_of(source))
        if not text.startswith(sent):
            if sample.finish is None:
                return ""
            raise RequestError(
                "the tokenizer has changed text that was sent already: send token_content instead"
            )
        self._texts[index] = text
        return text[len(sent) :]

"""Which trajectory of an episode a request goes on with, and which of its tokens are new.

A program that plays an episode sends its whole history with each request. ``Conversations`` finds
the sampled answer of the episode up to which a request repeats what a trajectory has, the longest
match over all of them. The tokens up to there are the trajectory's own, as they were given and
sampled; only what follows is rendered. If that answer is the trajectory's last, and nothing is
being sampled behind it, the request extends the trajectory. Otherwise a new one begins, with a copy
of these tokens as its context. A request that repeats no answer from the beginning is rendered as a
whole, so what a program has rewritten, such as a history with a summary in place of its beginning,
begins a trajectory too.

Nothing here waits or talks to anybody: the order of the calls alone decides.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, get_args

import numpy as np

from rlax_plugin.base.tokens.chat import Message
from rlax_plugin.rollout.http.messages import (
    Signature,
    check_depth,
    for_template,
    signature_of,
    signature_of_answer,
)
from rlax_plugin.rollout.http.policy import Asked, AssistantMessage, Edge, Refused

Kind = Literal["begun", "extended", "parallel", "rewritten", "edited", "retried"]
"""What a request does.

``begun``: it begins a trajectory, and has no answer of the episode. ``extended``: it goes on with
one. ``parallel``: it would, but another turn of that trajectory is being sampled. ``rewritten``: it
has answers of the episode, behind another history or not up to a trajectory's end. ``edited``: it
differs from a trajectory only inside sampled answers, which is probably a mistake of the program:
the changed answers are read, and do not train. ``retried``: it was sent again.
"""

REQUEST_ID = "x-acp-model-request-id"
"""Header with a request's own id, as programs for verifiers 0.4 send it: the same if it is sent
again (``verifiers.v1.semantic.ACP_MODEL_REQUEST_ID_HEADER``)."""

EDGE_TYPE, EDGE_SOURCE = "x-semantic-edge-type", "x-semantic-edge-source"
"""Headers with a request's relation to an earlier one, in the words of verifiers'
``SemanticEdge``, and with that one's ``REQUEST_ID``; without it, the newest answered one."""

_NOTHING = np.zeros(0, np.int32)
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_EDGE = re.compile(r"[A-Za-z][A-Za-z0-9._:-]{0,127}")
_CONTINUES = "continuation"
_BEGINS: Mapping[str, Kind] = {
    "compaction": "rewritten",
    "compaction_attempt": "rewritten",
    "subagent_call": "begun",
}


def declared(headers: Mapping[str, str]) -> tuple[str, Edge | None]:
    """Returns a request's id and edge (``Asked.id``, ``Asked.edge``), "" and None without them.

    Args:
      headers: with names in lower case.

    Raises:
      Refused: a header is not of its form.
    """
    for name, form in ((REQUEST_ID, _ID), (EDGE_TYPE, _EDGE), (EDGE_SOURCE, _ID)):
        if (value := headers.get(name)) is not None and not form.fullmatch(value):
            raise Refused(f"the header {name} must match {form.pattern}", param=name)
    kind, source = headers.get(EDGE_TYPE), headers.get(EDGE_SOURCE, "")
    if source and kind is None:
        raise Refused(f"the header {EDGE_SOURCE} needs {EDGE_TYPE}", param=EDGE_SOURCE)
    return headers.get(REQUEST_ID, ""), None if kind is None else Edge(kind, source)


@dataclass(slots=True, eq=False)
class Line:
    """A trajectory.

    Attributes:
      number: set by whoever samples, when the trajectory has one; None before.
      tools: hash of the tools.
      tokens: int32 [length], all that was given and sampled, up to the newest answer.
      signatures: of the messages, the answers among them, as far as they are known.
      marks: one for each answer.
      busy: True while a turn is sampled.
    """

    number: int | None = None
    tools: bytes = b""
    tokens: np.ndarray = field(default_factory=lambda: _NOTHING)
    signatures: Sequence[Signature] = ()
    marks: list[Mark] = field(default_factory=list)
    busy: bool = False

    @property
    def answers(self) -> dict[int, bytes]:
        """Places of the answers among the messages, and hashes of what they say."""
        places = [mark.messages - 1 for mark in self.marks if mark.messages]
        return {place: self.signatures[place].core for place in places}


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of an answer in a trajectory.

    Attributes:
      messages: number of messages up to it; None: they are not known, as behind a token request.
      begin, end: place of its first token, and the one behind its last.
    """

    messages: int | None
    begin: int
    end: int


@dataclass(slots=True, eq=False)
class Turn:
    """One sample of a request: where it belongs, and what is to be rendered for it.

    A caller samples it unless ``reply`` says that this is done already, as for a retry. It extends
    ``line`` with the tokens of ``given``, or begins it with ``prefix`` and these tokens. It then
    calls ``Conversations.answered`` or ``failed``.

    Attributes:
      kind: never ``retried``: a retry gets the turns of the earlier request.
      line: the trajectory.
      extends: True if the trajectory has turns.
      name: unique in the episode; for the ids of the answer's calls.
      prefix: int32 [length], tokens with which a new trajectory begins, as they were given and
        sampled in another one; empty if ``extends``.
      after: the sampled tokens that messages follow (``PromptSource.encode_messages``); None if
        nothing was sampled before them.
      given: messages in the form of chat templates, token ids or a text.
      tools: of the request.
      reply: the caller's, to be set before it waits: what all who ask for the turn wait for.
      signatures: of the whole chat; () for token ids and texts.
      done: True if it was answered.
      clients: number of those that wait for it or have got it; 0: all had gone before.
    """

    kind: Kind
    line: Line
    extends: bool
    name: str
    prefix: np.ndarray
    after: np.ndarray | None
    given: tuple[Message, ...] | np.ndarray | str
    tools: tuple[Mapping[str, Any], ...] = ()
    reply: Any = None
    signatures: Sequence[Signature] = ()
    done: bool = False
    clients: int = 1


@dataclass(frozen=True, slots=True)
class _Match:
    """How far a request repeats a trajectory: up to the end of an answer."""

    line: Line
    mark: int
    length: int
    same_ids: bool = False

    @property
    def is_last(self) -> bool:
        return self.mark == len(self.line.marks) - 1

    @property
    def goes_on(self) -> bool:
        return self.is_last and not self.line.busy


class Conversations:
    """The requests and trajectories of one episode.

    Attributes:
      counts: number of samples of each kind.
    """

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter(dict.fromkeys(get_args(Kind), 0))
        self._lines: list[Line] = []
        self._asked: dict[bytes, list[tuple[Turn, ...]]] = {}  # by hash; those that did not fail
        self._named: dict[str, Turn] = {}  # a turn of the request with an id, for edges
        self._newest: Turn | None = None
        self._turns = 0

    def ask(self, asked: Asked, room: float = math.inf) -> tuple[Turn, ...]:
        """Returns the turns that answer a request, one for each of its ``n`` choices.

        If the same request was sent before, these are its turns: if the client says that it sends
        it again (``retry``, or the same id), or if it had gone before it was answered (``lost``).

        Args:
          room: number of turns that may be sampled anew.

        Raises:
          Refused: a message is not valid; the request declares that it continues an earlier one,
            and does not repeat it; or there is no room.
        """
        given = asked.given
        if isinstance(given, tuple):
            given = tuple(for_template(one, f"messages[{i}]") for i, one in enumerate(given))
        check_depth(asked.tools, "tools")
        key = _key(asked)
        if (earlier := self._earlier(key, asked)) is not None:
            self.counts["retried"] += len(earlier)
            return earlier
        if asked.n > room:
            reason = "too many answers of the episode are under way"
            raise Refused(reason, status=429, kind="rate_limit_error")
        found: list[Turn] = []
        for _ in range(asked.n):
            turn = self._place(asked, given, is_first=not found)
            turn.line.busy = True
            found.append(turn)
        turns = tuple(found)
        self._asked.setdefault(key, []).append(turns)
        if asked.id:
            self._named[asked.id] = turns[0]
        return turns

    def answered(
        self,
        turn: Turn,
        given: Sequence[int] | np.ndarray,
        sampled: np.ndarray,
        message: AssistantMessage | None,
    ) -> None:
        """Adds an answer to its trajectory.

        Args:
          given: tokens of ``turn.given``.
          sampled: int32 [length], the stop token included.
          message: for a chat, as the client gets it; None otherwise.
        """
        line = turn.line
        before = turn.prefix if not turn.extends else line.tokens
        context = np.concatenate([before, np.asarray(given, np.int32).reshape(-1)])
        line.tokens = np.concatenate([context, np.asarray(sampled, np.int32)])
        count = None
        if turn.signatures and message is not None:
            line.signatures = (*turn.signatures, signature_of_answer(message))
            count = len(line.signatures)
        line.marks.append(Mark(count, len(context), len(line.tokens)))
        line.busy, turn.done, self._newest = False, True, turn
        # There are as many turns as answers, each with the whole history.
        turn.prefix, turn.after, turn.given, turn.signatures = _NOTHING, None, "", ()

    def failed(self, turn: Turn, *, sampled: bool = False) -> None:
        """Forgets a turn that was not answered, with all turns of its request.

        Args:
          sampled: True: the trajectory has the answer, but not here, so no request goes on with it.
        """
        turn.line.busy = False
        if sampled or not turn.extends:
            self._lines.remove(turn.line)
        self._asked = {
            key: left
            for key, requests in self._asked.items()
            if (left := [one for one in requests if turn not in one])
        }
        self._named = {name: one for name, one in self._named.items() if one is not turn}

    @property
    def all_delivered(self) -> bool:
        """True unless the client of an answer had gone and has not asked for it again."""
        requests = (turns for equal in self._asked.values() for turns in equal)
        return all(turn.clients for turns in requests for turn in turns if turn.done)

    def lost(self, turns: Sequence[Turn]) -> None:
        """Says that a client has gone without the answer, which it may ask for again."""
        for turn in turns:
            turn.clients -= 1

    # --- whether it was sent before --------------------------------------------------------------

    def _earlier(self, key: bytes, asked: Asked) -> tuple[Turn, ...] | None:
        """Returns the turns of an equal request that is sent again; None if there is none."""
        requests = self._asked.get(key, [])
        lost = next((one for one in requests if not one[0].clients), None)
        if not requests or (lost is None and not asked.retry and not asked.id):
            return None
        # Of several equal ones, that whose client has gone, then one that has no answer yet.
        waiting = (one for one in requests if not all(turn.done for turn in one))
        found = lost or next(waiting, requests[-1])
        for turn in found:
            turn.clients += 1
        return found

    # --- where it belongs ------------------------------------------------------------------------

    def _place(
        self, asked: Asked, given: tuple[Message, ...] | np.ndarray | str, is_first: bool
    ) -> Turn:
        tools, edge = _hash(asked.tools), asked.edge
        signatures: tuple[Signature, ...] = ()
        matches: list[_Match | None] = []
        if isinstance(given, tuple):
            signatures = tuple(map(signature_of, given))
            matches = [_messages_match(line, signatures, tools) for line in self._lines]
        elif isinstance(given, np.ndarray):
            matches = [_tokens_match(line, given) for line in self._lines]
        found = [match for match in matches if match is not None]
        if edge is not None and edge.kind == _CONTINUES and is_first:
            found = [self._continued(edge, found)]
        # Of the longest, the one that the client's ids name, that goes on, or the newest.
        best = max(
            reversed(found), key=lambda one: (one.length, one.same_ids, one.goes_on), default=None
        )
        extends = best is not None and best.goes_on
        if edge is not None and edge.kind in _BEGINS:
            extends, kind = False, _BEGINS[edge.kind]
        else:
            kind = "extended" if extends else self._kind(best, given, signatures, tools)
        line, prefix, after = Line(tools=tools), _NOTHING, None
        if best is not None:
            mark = best.line.marks[best.mark]
            prefix, after = best.line.tokens[: mark.end], best.line.tokens[mark.begin : mark.end]
            given = given[best.length :]
            if extends:
                line, prefix = best.line, _NOTHING
        if not extends:
            self._lines.append(line)
        self._turns += 1
        self.counts[kind] += 1
        turn = Turn(kind, line, extends, str(self._turns), prefix, after, given, asked.tools)
        turn.signatures = signatures
        return turn

    def _continued(self, edge: Edge, matches: Sequence[_Match]) -> _Match:
        """Returns the match with the answer that a request says it continues."""
        source = self._named.get(edge.parent) if edge.parent else self._newest
        if source is None or not source.done:
            raise Refused(f"no answered request has the id {edge.parent!r}", param=EDGE_SOURCE)
        for match in matches:
            if match.line is source.line and match.goes_on:
                return match
        raise Refused(
            "the request does not repeat, or not up to its last answer, what it continues: send "
            "the history as it was, or declare no edge",
            param=EDGE_TYPE,
        )

    def _kind(
        self,
        best: _Match | None,
        given: tuple[Message, ...] | np.ndarray | str,
        signatures: Sequence[Signature],
        tools: bytes,
    ) -> Kind:
        """Returns the kind of a request that begins a trajectory."""
        if best is not None and best.is_last:
            return "parallel"
        if isinstance(given, np.ndarray):
            edited = any(_tokens_edited(line, given) for line in self._lines)
            return "edited" if edited else "begun" if best is None else "rewritten"
        answers = {core for line in self._lines for core in line.answers.values()}
        if any(_messages_edited(line, signatures, tools, answers) for line in self._lines):
            return "edited"
        return "rewritten" if any(one.core in answers for one in signatures) else "begun"


def _messages_match(line: Line, signatures: Sequence[Signature], tools: bytes) -> _Match | None:
    """Returns the last answer of a trajectory up to which messages repeat it."""
    differ = _differing(line, signatures, tools)
    equal = differ[0] if differ else min(len(line.signatures), len(signatures))
    found = [k for k, one in enumerate(line.marks) if one.messages and one.messages <= equal]
    if not found or line.tools != tools:
        return None
    length = line.marks[found[-1]].messages or 0
    same_ids = signatures[length - 1].ids == line.signatures[length - 1].ids
    return _Match(line, found[-1], length, same_ids)


def _messages_edited(
    line: Line, signatures: Sequence[Signature], tools: bytes, answers: set[bytes]
) -> bool:
    """True if messages differ from a trajectory only in answers, and these were never sampled."""
    differ, places = _differing(line, signatures, tools), line.answers.keys()
    return bool(differ) and all(i in places and signatures[i].core not in answers for i in differ)


def _differing(line: Line, signatures: Sequence[Signature], tools: bytes) -> list[int]:
    """Returns the places at which messages differ from a trajectory's; [] with other tools."""
    if line.tools != tools:
        return []
    answers = line.answers
    return [
        i
        for i, (ours, theirs) in enumerate(zip(line.signatures, signatures, strict=False))
        if not (theirs.repeats(ours) if i in answers else theirs.says(ours))
    ]


def _tokens_match(line: Line, given: np.ndarray) -> _Match | None:
    """Returns the last answer of a trajectory up to which token ids repeat it."""
    equal = _equal(line, given)
    found = [k for k, one in enumerate(line.marks) if one.end <= equal]
    return _Match(line, found[-1], line.marks[found[-1]].end) if found else None


def _tokens_edited(line: Line, given: np.ndarray) -> bool:
    """True if the first token that differs from a trajectory's is one that was sampled."""
    equal = _equal(line, given)
    return len(given) > equal and any(one.begin <= equal < one.end for one in line.marks)


def _equal(line: Line, given: np.ndarray) -> int:
    """Returns the number of tokens at the beginning that are those of a trajectory."""
    length = min(len(given), len(line.tokens))
    differ = np.flatnonzero(line.tokens[:length] != given[:length])
    return int(differ[0]) if len(differ) else length


def _key(asked: Asked) -> bytes:
    """Returns a hash of all of a request but its edge and the number of tries."""
    given = asked.given.tolist() if isinstance(asked.given, np.ndarray) else asked.given
    settings = (
        asked.id,
        *(asked.tools, asked.n, asked.most_tokens, asked.temperature, asked.top_p, asked.top_k),
        *(asked.seed, asked.stop, asked.stop_ids),
    )
    return _hash([given, settings])


def _hash(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).digest()

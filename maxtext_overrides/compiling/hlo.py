"""Reads the text of a compiled program (HLO): its computations, instructions and loops.

XLA's cost analysis counts the body of a loop once, however often it runs, and a program of scanned
layers is mostly such a body. Here a computation is counted as often as it runs. No JAX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# %name = <shape> opcode(operands), attributes; a shape may be a tuple, and has layouts in braces.
_INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<shape>.+?) (?P<opcode>[a-z][a-z0-9-]*)"
    r"\((?P<rest>.*)$"
)
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\) -> .*\{$")
# Other lines continue the one before.
_BEGINS = re.compile(r"\s+(?:ROOT )?%?[\w.-]+ = |(?:ENTRY )?%?[\w.-]+ \(.*\{$|\}$|HloModule")
_ARRAY = re.compile(r"\b(?P<dtype>[a-z]\w*)\[(?P<dims>[\d,]*)\]")
_OPERAND = re.compile(r"%([\w.-]+)")
_COMMENT = re.compile(r"/\*.*?\*/")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|async_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(
    r"\bbranch_computations=\{([^}]*)\}|\b(?:true|false)_computation=%?([\w.-]+)"
)
_KNOWN_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SAME_VALUE = ("copy", "bitcast", "convert", "reshape", "copy-done", "copy-start")
_LONGEST_LOOKUP = 50  # instructions between a loop's counter and the constant it starts from


@dataclass(frozen=True, slots=True)
class Array:
    """The type of an array: its dtype as HLO writes it, and its dimensions."""

    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a computation.

    Attributes:
      name: its name, without the percent sign.
      opcode: for example ``while``, ``convolution`` or ``all-gather-start``.
      arrays: types of its result; several if the result is a tuple.
      operands: names of its operands, in order.
      attributes: the text behind the operands.
      literal: the text between the parentheses, which of a constant is its value.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    literal: str

    def called(self) -> list[str]:
        """Returns the names of the computations that it runs, a conditional's branches too."""
        found = _CALLED.findall(self.attributes)
        for several, one in _BRANCHES.findall(self.attributes):
            found += _OPERAND.findall(several) if several else [one]
        return found

    def named(self, attribute: str) -> str:
        """Returns the name after ``attribute=``; empty if there is none."""
        found = re.search(rf"\b{attribute}=%?([\w.-]+)", self.attributes)
        return found[1] if found else ""


@dataclass(slots=True)
class Computation:
    """A computation: its instructions by name, and the one that is its result."""

    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program.

    Attributes:
      computations: name -> computation.
      entry: name of the computation that runs first.
    """

    computations: Mapping[str, Computation]
    entry: str

    def runs(self) -> tuple[dict[str, int], tuple[str, ...]]:
        """Returns how often each computation runs, and the loops whose number of rounds is unknown.

        The body of such a loop counts once.
        """
        counts: dict[str, int] = dict.fromkeys(self.computations, 0)
        unknown: list[str] = []

        def visit(name: str, times: int) -> None:
            counts[name] += times
            for one in self.computations[name].instructions.values():
                rounds = 1
                if one.opcode == "while":
                    found = self.rounds(name, one)
                    rounds = 1 if found is None else found
                    if found is None and one.name not in unknown:
                        unknown.append(one.name)
                for called in one.called():
                    if called in self.computations:
                        visit(called, times * rounds)

        visit(self.entry, 1)
        return counts, tuple(unknown)

    def rounds(self, where: str, loop: Instruction) -> int | None:
        """Returns how often a loop's body runs, if constants determine it; else None.

        Args:
          where: the computation that holds the loop.
        """
        if known := _KNOWN_COUNT.search(loop.attributes):
            return int(known[1])
        condition = self.computations.get(loop.named("condition"))
        if condition is None:
            return None
        test = condition.instructions[condition.root]
        if test.opcode != "compare":
            return None
        left, right = (condition.instructions[name] for name in test.operands)
        end, place = self._constant(condition, right.name), _element(left)
        if end is None or place is None or test.named("direction") not in ("LT", "LE"):
            return None
        holder = self.computations[where]
        start = self._start(holder, loop.operands[0], place)
        step = self._step(loop.named("body"), place)
        if start is None or not step:
            return None
        end += test.named("direction") == "LE"
        return max(0, -(-(end - start) // step))

    def _start(self, holder: Computation, operand: str, place: int) -> int | None:
        """Returns the value of a counter before the first round."""
        given = holder.instructions.get(operand)
        if given is None or given.opcode != "tuple":
            return None
        return self._constant(holder, given.operands[place])

    def _step(self, body_name: str, place: int) -> int | None:
        """Returns what each round adds to a counter."""
        body = self.computations.get(body_name)
        if body is None or not body.root:
            return None
        root = body.instructions[body.root]
        if root.opcode != "tuple":
            return None
        added, which = _origin(body, root.operands[place])
        while added is not None and added.opcode == "fusion":
            body = self.computations[added.named("calls")]
            inner = body.instructions[body.root]
            name = inner.operands[which] if inner.opcode == "tuple" else inner.name
            added, which = _origin(body, name)
        if added is None or added.opcode != "add":
            return None
        constants = [self._constant(body, name) for name in added.operands]
        return next((value for value in constants if value is not None), None)

    def _constant(self, holder: Computation, name: str) -> int | None:
        found, _ = _origin(holder, name)
        if found is None or found.opcode != "constant":
            return None
        try:
            return int(found.literal)
        except ValueError:
            return None


def _origin(holder: Computation, name: str) -> tuple[Instruction | None, int]:
    """Returns the instruction that computes a value, behind copies, and which of its results."""
    which = 0
    for _ in range(_LONGEST_LOOKUP):
        found = holder.instructions.get(name)
        if found is None:
            return None, which
        if found.opcode in _SAME_VALUE:
            name = found.operands[0]
        elif found.opcode == "get-tuple-element":
            which = _element(found) or 0
            name = found.operands[0]
        else:
            return found, which
    return None, which


def _element(instruction: Instruction) -> int | None:
    """Returns which element of a tuple it takes; None if it takes none."""
    found = re.search(r"\bindex=(\d+)", instruction.attributes)
    if instruction.opcode == "copy" or found is None:
        return None
    return int(found[1])


def parse(text: str) -> Program:
    """Reads the text of a program as ``Compiled.as_text()`` returns it.

    Raises:
      ValueError: there is no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry, current = "", Computation()
    for line in _logical_lines(text):
        if (head := _COMPUTATION.match(line)) is not None:
            current = computations[head["name"]] = Computation()
            entry = head["name"] if head["entry"] else entry
        elif (found := _INSTRUCTION.match(line)) is not None:
            inside, attributes = _split(found["rest"])
            operands = tuple(_OPERAND.findall(_COMMENT.sub("", inside)))
            one = Instruction(
                found["name"],
                found["opcode"],
                arrays(found["shape"]),
                operands,
                attributes,
                inside.strip(),
            )
            current.instructions[one.name] = one
            if found["root"]:
                current.root = one.name
    if not entry:
        raise ValueError("the program's text has no ENTRY computation")
    return Program(computations, entry)


def arrays(shape: str) -> tuple[Array, ...]:
    """Returns the arrays of a type, such as ``(bf16[8,128]{1,0:T(8,128)}, s32[])``."""
    return tuple(
        Array(found["dtype"], tuple(int(n) for n in found["dims"].split(",") if n))
        for found in _ARRAY.finditer(shape)
    )


def _logical_lines(text: str) -> Iterator[str]:
    """Yields lines; one whose quoted text holds line breaks comes as one line."""
    held = ""
    for line in text.splitlines():
        if _BEGINS.match(line) is None:
            held += f" {line}"
            continue
        yield held
        held = line
    yield held


def _split(rest: str) -> tuple[str, str]:
    """Divides the text behind an opcode's parenthesis into operands and attributes."""
    depth = 1
    for place, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return rest[:place], rest[place + 1 :]
    return rest, ""

"""Recognises expressions that are too large to compute, before they are computed.

A completion can write a number that no machine can hold in ten characters. math-verify parses it
without computing it, but comparing it would; and the time that parsing itself takes doubles with
each level of some nested expressions. The limits lie beyond any ordinary answer. An expression that
passes them and still takes long is ended by the reward's limit of CPU time.
"""

from __future__ import annotations

import math
import re
from typing import Any

_MOST_NODES = 2000
_MOST_DIGITS = 1000  # of a number, written or computed
_MOST_TERMS = 500  # of a sum that is multiplied out
_MOST_STEPS = 1000  # ends of a sum or product; of nested ones, multiplied
_MOST_FACTORIAL = 300
_DEEPEST = 14  # nested braces
_MOST_FUNCTIONS = 12  # sines, logarithms and so on, whose sums sympy tries to simplify
_DEEPEST_FUNCTIONS = 5  # of each other
_MOST_SUMS = 2  # sums and products over an index

# Parsing itself computes these, with numbers that need not be their own: they may be anywhere.
_COMPUTED = re.compile(r"binom|choose|matrix\}\s*\^")
_LONG_NUMBER = re.compile(r"\d{5}")
_SUMS = re.compile(r"\\(?:sum|prod)")
_OPENING, _CLOSING, _BETWEEN = "{([", "})]", "+-,=&"
_FUNCTIONS = r"sinh?|cosh?|tanh?|coth?|sec|csc|lo?g|ln|exp|Gamma|zeta"
_NESTING = re.compile(rf"(?:arc)?(?:{_FUNCTIONS})|[-{{(\[}})\]+,=&]")
_MUCH_TOO_LONG = re.compile(rf"\d{{{_MOST_DIGITS}}}")


def may_be_parsed(text: str) -> bool:
    """True if parsing a text takes bounded time; the caller has bounded its length."""
    if _MUCH_TOO_LONG.search(text) or (_COMPUTED.search(text) and _LONG_NUMBER.search(text)):
        return False
    if len(_SUMS.findall(text)) > _MOST_SUMS or "\\int" in text:
        return False
    return _nesting_is_small(text)


def _nesting_is_small(text: str) -> bool:
    """Returns True if neither brackets nor functions are nested too deeply."""
    functions = waiting = 0  # all; those whose argument comes next
    around: list[int] = []  # for each open bracket, the functions that it is an argument of
    for match in _NESTING.finditer(text):
        token = match[0]
        inside = around[-1] if around else 0
        if token in _OPENING:
            around.append(inside + waiting)
            waiting = 0
        elif token in _CLOSING:
            if around:
                around.pop()
            waiting = 0
        elif token in _BETWEEN:
            waiting = 0
        else:
            functions, waiting = functions + 1, waiting + 1
            if inside + waiting > _DEEPEST_FUNCTIONS:
                return False
        if len(around) > _DEEPEST or functions > _MOST_FUNCTIONS:
            return False
    return True


def is_small(expression: Any) -> bool:
    """True if sympy can compute, expand and compare an expression soon."""
    import sympy

    if isinstance(expression, sympy.MatrixBase):
        return len(expression) <= _MOST_NODES and all(map(is_small, expression))
    return not isinstance(expression, sympy.Basic) or _Sizes().are_small(expression)


class _Sizes:
    """The sizes of the parts of one expression, from the inside out, each computed once."""

    def __init__(self) -> None:
        self._digits: dict[Any, float] = {}
        self._terms: dict[Any, float] = {}
        self._steps: dict[Any, float] = {}

    def are_small(self, expression: Any) -> bool:
        import sympy

        for number, node in enumerate(sympy.postorder_traversal(expression), 1):
            if number > _MOST_NODES:
                return False
            if not isinstance(node, sympy.Basic) or node in self._digits:
                continue
            if isinstance(node, sympy.Integral) or not self._is_small(node):
                return False
            self._digits[node], self._terms[node] = self._digits_of(node), self._terms_of(node)
            if self._digits[node] > _MOST_DIGITS or self._terms[node] > _MOST_TERMS:
                return False
            self._steps[node] = self._steps_of(node)
            if self._steps[node] > _MOST_STEPS:
                return False
        return True

    def _is_small(self, node: Any) -> bool:
        """True if a node whose parts are small adds no loop that is too long."""
        import sympy

        if isinstance(node, sympy.Sum | sympy.Product):
            ends = [end for _, *ends in node.limits for end in ends]
            return all(end.is_infinite or _value(end) <= _MOST_STEPS for end in ends)
        growing = sympy.factorial | sympy.factorial2 | sympy.gamma | sympy.binomial
        if isinstance(node, growing):
            return all(one.free_symbols or _value(one) <= _MOST_FACTORIAL for one in node.args)
        return True

    def _digits_of(self, node: Any) -> float:
        """Returns an upper limit for the digits of all numbers that computing the node makes."""
        import sympy

        if isinstance(node, sympy.Rational):
            return max(math.log10(abs(one)) if one else 0.0 for one in (node.p, node.q))
        if isinstance(node, sympy.Pow):
            base, exponent = node.args
            # Those of a number are exact, such as 0.3 of 2.
            least = 0.0 if isinstance(base, sympy.Rational) else 1.0
            return max(least, self._digits[base]) * self._power(exponent) + self._digits[exponent]
        return sum(self._digits.get(one, 0.0) for one in node.args)

    def _steps_of(self, node: Any) -> float:
        """Returns the steps of the longest loop; the steps of nested loops are multiplied."""
        import sympy

        steps = max((self._steps.get(one, 1.0) for one in node.args), default=1.0)
        if isinstance(node, sympy.Sum | sympy.Product):
            for _, *ends in node.limits:
                steps *= max([1.0, *(_value(end) for end in ends if not end.is_infinite)])
        return steps

    def _terms_of(self, node: Any) -> float:
        """Returns the number of terms of the node when it is multiplied out."""
        import sympy

        terms = [self._terms.get(one, 1.0) for one in node.args]
        if isinstance(node, sympy.Add):
            return sum(terms)
        if isinstance(node, sympy.Pow) and terms[0] > 1 and node.base.free_symbols:
            power = min(self._power(node.exp), _MOST_TERMS)
            return math.comb(int(terms[0] + power) - 1, int(power))
        return math.prod(terms) if isinstance(node, sympy.Mul) else 1.0

    def _power(self, exponent: Any) -> float:
        if exponent.free_symbols:
            return 1.0
        return max(1.0, _value(exponent) if self._digits[exponent] < _MOST_DIGITS else math.inf)


def _value(number: Any) -> float:
    """Returns the absolute value of a small number; infinity if it is not finite."""
    import sympy

    if number.free_symbols:
        return math.inf
    try:
        return float(abs(sympy.N(number, 15)))
    except (TypeError, ValueError, OverflowError):
        return math.inf

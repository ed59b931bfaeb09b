"""Checks answers that a scorer would execute as Python, before it does.

Some scorers of reasoning-gym pass an answer to ``eval`` or to sympy's ``parse_expr``, which uses
it. A completion could thus run any code in the reward process, or name a variable that holds the
right answer. Only plain data and small arithmetic expressions pass.
"""

from __future__ import annotations

import ast

_LONGEST = 2000  # characters
_LARGEST_POWER = 100
_SIGNED = (ast.Expression, ast.Load, ast.UnaryOp, ast.USub, ast.UAdd)
_LITERALS = (*_SIGNED, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set)
_ARITHMETIC = (*_SIGNED, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_FUNCTIONS = {
    *("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("exp", "log", "ln", "sqrt", "Abs", "erf"),
}


def is_harmless_literal(text: str) -> bool:
    """True if ``eval`` of a text makes plain data, or fails because it is not Python."""
    if len(text) > _LONGEST:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return True  # as eval finds, too
    except (RecursionError, MemoryError):
        return False
    return all(isinstance(node, _LITERALS) for node in ast.walk(tree))


def is_harmless_arithmetic(text: str) -> bool:
    """True if sympy's ``parse_expr`` of a text computes only a small formula."""
    if len(text) > _LONGEST:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # parse_expr understands more than Python does
    return all(map(_is_arithmetic, ast.walk(tree)))


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return _is_up_to(node, 10**_LARGEST_POWER)
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS or (len(node.id) == 1 and node.id.isalpha())
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        powers = sum(isinstance(one, ast.Pow) for one in ast.walk(node))
        numbers = [one for one in ast.walk(node.right) if isinstance(one, ast.Constant)]
        return powers == 1 and all(_is_up_to(one, _LARGEST_POWER) for one in numbers)
    return isinstance(node, _ARITHMETIC)


def _is_up_to(constant: ast.Constant, largest: int) -> bool:
    return isinstance(constant.value, int | float) and abs(constant.value) <= largest

"""Completions that try to be expensive or impossible to score, and what rewards give for them."""

import math
from collections.abc import Iterator
from typing import Any

from rlax_plugin.api import BuildContext, LimitedFunction
from rlax_plugin.build import registry_of
from rlax_plugin.config import RewardChoice
from rlax_plugin.reward.process import form_of
from rlax_plugin.testing import make_episode, make_prompt

MANY = 30_000
MARKS = 100_000  # accents, which take quadratic time to put in order
NUMBERS = [
    *("nan", "NaN", "inf", "-inf", "Infinity", "1e999", "-1e999", "1e-999", "1e400", "1e999999999"),
    *("10**10**10", "9^{9^9}", "0x" + "f" * 5000, "1_000", "1/0", "0/0", r"\frac{1}{0}", "-0.0"),
    *("9" * 4301, "9" * MANY, "0" * MANY + "7", "1," * MANY, "1." * MANY, "-" * MANY + "1"),
    *("1/" * MANY, "1e" * MANY, "$" * MANY + "1", "1%" * MANY, "1 " * MANY, "1" + "a" * MANY),
    *("\u0665", "\uff14\uff12", "\u00b2", "\u00bd", "\U0001d7dc", "\u0665" * MANY, "4\u20e3"),
]
NESTED = [
    *("[" * MANY, "(" * MANY, "{" * MANY, '{"a":' * MANY, "[" * MANY + "]" * MANY, "[[1]," * MANY),
    *("1+" * MANY + "1", "not " * MANY, "lambda:" * 1000, "(" * 90 + ")" * 90, "-" * 1500 + "1"),
    *("[1]*10**10", "'a'*10**10", "{**{}}", "{[]: 1}", "f'{1}'", "b'" + "x" * MANY, "None", "..."),
]
TEXTS = [
    *(
        "",
        " ",
        "\x00",
        "\ud800",
        "\u200f\u202e",
        "\ufeff",
        " " * MANY,
        "\n" * MANY,
        "\u00a0" * MANY,
    ),
    *(
        "a" + "\u0316\u0301" * MARKS,
        "\ufdfa" * MANY,
        "\u0390" * MANY,
        "\u0345" * MANY,
        "x" * 60 + "y",
    ),
    *("\u1f82" * MANY, "\u00df" * MANY, "\\" * MANY, "%s%n" * MANY, "\u1100\u1161\u11a8" * MANY),
    *("\\boxed{" * MANY, "####" * MANY, "<answer>" * MANY, "</answer>" * MANY, "\\frac{" * MANY),
]
MATHEMATICS = [
    r"\frac{" * 39 + "1" + "}{2}" * 39,
    r"\sum_{i=1}^{1000}\sum_{j=1}^{1000}\sum_{k=1}^{1000} ijk",
    r"\sin(" * 38 + "x" + ")" * 38,
    r"\log(" * 38 + "x" + ")" * 38,
    r"\sin" * 38 + "x",
    "+".join(rf"\sin({i}x)\cos({i}y)" for i in range(1, 31)),
    r"\prod_{i=1}^{1000} (x+i)",
    "(x+1)^{100000}",
    "(a+b)^{9}(c+d)^{9}(e+f)^{9}(g+h)^{9}",
    "x^{x^{x^{x^{x^x}}}}",
    "!" * 900,
    "((((9!)!)!)!)",
    r"\binom{100000}{50000}",
    r"\int_0^1 e^{-x^2} \sin(x^5) dx",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{100000}",
    "|" * 900,
]
ALL = [*NUMBERS, *NESTED, *TEXTS, *MATHEMATICS]


def completions(hostile: list[str]) -> Iterator[str]:
    """Each text alone, and where rewards look for an answer."""
    for text in hostile:
        yield text
        yield f"So \\boxed{{{text}}}\n<answer>{text}</answer>\n#### {text}"


def scored(
    name: str, options: dict[str, Any], about: dict[str, Any], wrong: list[str], only: list[int]
) -> tuple[float, list[str]]:
    """What the best wrong answer gets, and which completions get more, fail or have no number.

    Args:
      about: ``reference`` and ``metadata`` of the prompt.
      only: numbers of the hostile texts; none: all.
    """
    from sections import section_with

    section = section_with(rollouts={"max_new_tokens": 100})
    context = BuildContext.outside_run(section)
    choice = RewardChoice.model_validate({"name": name, **options})
    part = registry_of(("rlax_plugin.testing",)).part("reward", choice, "rlax.rewards.0", context)
    form = form_of(part)
    prompt = make_prompt(**about)

    def of(completion: str) -> float:
        episode = make_episode(text=completion)
        given = form.method(*form.arguments(prompt, episode))
        return float(getattr(given, "total", given))

    most = max(map(of, wrong))
    bad = []
    for completion in completions([ALL[one] for one in only] if only else ALL):
        shown = f"{completion[:60]!r} of {len(completion)}"
        try:
            value = of(completion)
        except Exception as error:  # noqa: BLE001  the rule is that nothing is raised
            bad.append(f"{shown}: {type(error).__name__}: {str(error)[:200]}")
        else:
            if not math.isfinite(value) or value > most:
                bad.append(f"{shown}: {value}")
    return most, bad


def in_bounded_work(cpu_s: float) -> LimitedFunction:
    """``scored`` in another process, with so much CPU time of its own."""
    return LimitedFunction(
        "hostile_answers:scored", cpu_s=cpu_s, wait_s=300.0, memory_bytes=16 << 30
    )

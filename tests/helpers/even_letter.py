"""A reward for any text, which a model that has learned nothing gets about every second time."""

from rlax_plugin.api import Extension, NoOptions, Prompt, hookimpl


class EvenLetterConfig(NoOptions):
    """1 if the completion begins with a character of an even number, else 0."""


def even_letter(prompt: Prompt, completion: str) -> float:
    return float(completion != "" and ord(completion[0]) % 2 == 0)


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"even_letter": Extension(EvenLetterConfig, lambda config, context: even_letter)}

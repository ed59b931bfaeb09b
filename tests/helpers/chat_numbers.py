"""Prompt source ``chat_numbers``, a chat for the toy policy, and reward ``digits``."""

from rlax_plugin.api import (
    BuildContext,
    Extension,
    NoOptions,
    PathText,
    Prompt,
    Section,
    TextRow,
    TextSource,
    Tokenizer,
    hookimpl,
    model_tokenizer,
)


class ChatNumbersConfig(Section):
    tokenizer: PathText = ""  # empty: the model's


class ChatNumbers(TextSource):
    def rows(self, split: str) -> list[TextRow]:
        first = self.splits.index(split) * 100
        return [TextRow(f"{n}?", str(n)) for n in range(first, first + 32)]


def digits(prompt: Prompt, completion: str) -> float:
    return float(any(c.isdigit() for c in completion))


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    def build(config: ChatNumbersConfig, context: BuildContext) -> ChatNumbers:
        tokenizer = (
            Tokenizer.load(config.tokenizer, "rlax.prompt_source.tokenizer")
            if config.tokenizer
            else model_tokenizer(context)
        )
        return ChatNumbers(tokenizer, chat=True, system="add", stop_strings=("=", "ab"))

    return {"chat_numbers": Extension(ChatNumbersConfig, build)}


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"digits": Extension(NoOptions, lambda config, context: digits)}

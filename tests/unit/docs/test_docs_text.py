"""The prompt source of docs/text.md works with a model's tokenizer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from documents import fences, read
from small_tokenizers import byte_level

from rlax_plugin.api import BuildContext


def test_the_prompt_source_of_the_page(tmp_path: Path) -> None:
    (code,) = fences(read("text.md"), "python")
    names: dict[str, Any] = {}
    exec(compile(code, "text.md", "exec"), names)
    extension = names["rlax_register_prompt_source"]()["doubles"]
    maxtext = {"tokenizer_path": str(byte_level(tmp_path)), "tokenizer_type": "huggingface"}
    context: Any = BuildContext(tmp_path, 0, None, SimpleNamespace(maxtext=maxtext))  # pyright: ignore
    for chat in (False, True):
        source = extension.build(extension.config_class(chat=chat), context)
        prompt = source.prompts("test")[0]
        assert prompt.text == "Two times 200 is" and prompt.reference == " 400"
        text = source.decode(source.answer_tokens(prompt))
        assert text == (" 400" if chat else " 400\n")
        system = "system\nAnswer with a number.\nuser\nTwo times 200 is\nassistant\n"
        assert source.decode(prompt.tokens) == (system if chat else prompt.text)

"""The task of tool_task.yml: a number plus the price of an item, which only the tool knows."""

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any
from zlib import crc32

from rlax_plugin.api import DatasetConfig, DatasetSource, Extension, PositiveInt, hookimpl

ITEMS = ["".join(letters) for letters in product("abcd", repeat=4)]
UNSEEN = ITEMS[::10]  # only in the split test: their prices cannot have been learned


def price(of: str) -> int:
    """Returns the price of an item.

    Args:
        of: name of the item
    """
    if of not in ITEMS:
        raise ValueError("no such item")
    return crc32(of.encode()) % 10


class ShopConfig(DatasetConfig):
    """Questions such as abca+4; as demonstrations, whole conversations."""

    count: PositiveInt = 2000


class Shop(DatasetSource):
    config: ShopConfig

    def rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        from transformers.utils.chat_template_utils import get_json_schema  # takes a second

        random = Random(f"{split} {self.turns}")
        items = UNSEEN if split == "test" else sorted({*ITEMS} - {*UNSEEN})
        for n in range(self.config.count):
            item, number = random.choice(items), random.randrange(10)
            question, answer = f"{item}+{number}", str(price(item) + number)
            row: dict[str, Any] = {"question": question, "answer": answer}
            if self.turns is not None:
                call = {"name": "price", "arguments": {"of": item}}
                messages = [
                    {"role": "user", "content": question},
                    {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]},
                    {"role": "tool", "content": str(price(item))},
                    {"role": "assistant", "content": answer},
                ]
                row = {"messages": messages, "tools": [get_json_schema(price)]}
            yield f"question {n}", row


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"shop": Extension(ShopConfig, Shop.build, needs_model=True)}

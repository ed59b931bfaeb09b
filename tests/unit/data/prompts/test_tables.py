"""A table is the prompts of its source: read by index, found by id, in domains."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from data_sets import listed, tables, tokenizer

from rlax_plugin.api import Prompt, PromptTable, TextRow, TextSource
from rlax_plugin.data.prompts.rows_to_table import prepare
from rlax_plugin.data.prompts.source import open_tables

ROWS = [{"question": f"{n}+1=", "answer": n + 1, "level": n % 3} for n in range(20)]


class Plain(TextSource):
    def rows(self, split: str) -> list[TextRow]:
        return [TextRow(f"{n}+1=", str(n + 1), {"level": n % 3}) for n in range(20)]


def same(one: Prompt, other: Prompt) -> bool:
    tokens = one.tokens.dtype == np.int32 and np.array_equal(one.tokens, other.tokens)
    texts = (one.id, one.text, one.reference, one.metadata)
    return tokens and texts == (other.id, other.text, other.reference, other.metadata)


@pytest.mark.parametrize("chat", [False, True])
def test_its_prompts_are_those_of_a_text_source(chat: bool) -> None:
    table = tables(listed(*ROWS, chat=chat))["train"]
    expected = Plain(tokenizer(chat=chat), chat=chat).prompts("train")
    assert len(table) == 20
    assert all(same(one, other) for one, other in zip(table, expected, strict=True))
    assert table.lengths.tolist() == [len(prompt.tokens) for prompt in expected]
    assert [table.id_at(i) for i in range(20)] == [prompt.id for prompt in expected]
    assert table.ids.tobytes().hex() == "".join(prompt.id for prompt in expected)


def test_messages_are_the_prompts_of_a_text_source() -> None:
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    table = tables(listed({"prompt": said, "answer": "2"}, chat=True, system=""))["train"]

    class Chat(TextSource):
        def rows(self, split: str) -> list[TextRow]:
            return [TextRow(said, "2")]

    (expected,) = Chat(tokenizer(chat=True), chat=True).prompts("train")
    assert same(table[0], expected) and table[0].metadata == {"messages": said}


def test_reading_by_index_slice_and_id() -> None:
    table = tables(listed(*ROWS))["train"]
    assert [p.reference for p in table[3:5]] == ["4", "5"] and table[-1].reference == "20"
    assert [p.reference for p in table.read([7, 0, 7])] == ["8", "1", "8"]
    assert table.find(table[13].id) == 13 and table.place_of(13) == "row 14"
    for unknown in ("00" * 16, "zz", "", "00"):
        assert table.find(unknown) is None
    with pytest.raises(IndexError):
        table[20]


def test_its_digest_is_of_ids_tokens_and_order() -> None:
    table = tables(listed(*ROWS))["train"]
    expected = hashlib.blake2b(digest_size=16)
    for prompt in table:
        expected.update(bytes.fromhex(prompt.id) + len(prompt.tokens).to_bytes(4, "little"))
        expected.update(prompt.tokens.astype("<i4").tobytes())
    assert table.digest == expected.hexdigest()

    def digest(*rows: dict, **options: object) -> str:
        return tables(listed(*rows, **options))["train"].digest

    assert digest(*ROWS) == digest(*ROWS)
    assert len({digest(*ROWS), digest(*ROWS[::-1]), digest(*ROWS[1:]), digest(ROWS[0])}) == 4


def test_domains_of_a_column_have_the_weights_of_the_config() -> None:
    plain = tables(listed(*ROWS, domain="level"))["train"].domains
    assert plain is not None and plain.names == ("0", "1", "2")
    assert plain.of_n.tolist() == [n % 3 for n in range(20)]
    assert plain.weights.tolist() == [7 / 20, 7 / 20, 6 / 20]
    weights = {"0": 1, "1": 2, "2": 5}
    weighted = tables(listed(*ROWS, domain="level", weights=weights))["train"].domains
    assert weighted is not None and weighted.weights.tolist() == [1 / 8, 2 / 8, 5 / 8]
    assert tables(listed(*ROWS))["train"].domains is None


def test_joined_tables_are_domains() -> None:
    sums = tables(listed(*ROWS, domain="level"))["train"]
    words = tables(listed({"question": "cat?"}, {"question": "dog?"}))["train"]
    both = PromptTable.joined({"sums": sums, "words": words}, {"sums": 1, "words": 3})
    assert len(both) == 22 and both[20].text == "cat?" and both[19].text == "19+1="
    assert both.find(words[1].id) == 21 and both.place_of(21) == "row 2"
    assert both.domains is not None
    assert both.domains.names == ("sums/0", "sums/1", "sums/2", "words")
    assert np.bincount(both.domains.of_n).tolist() == [7, 7, 6, 2]
    assert np.allclose(both.domains.weights, [7 / 80, 7 / 80, 6 / 80, 3 / 4])
    again = PromptTable.joined({"sums": words, "words": sums}, {"sums": 1, "words": 3})
    assert both.digest != again.digest


def test_prompts_of_several_batches(tmp_path: Path) -> None:
    source = listed(*ROWS)
    prepare(source, tmp_path, source.identity(), lambda split, rows: None, batch_rows=3)
    assert pa.ipc.open_file(tmp_path / "train.arrow").num_record_batches == 7
    found = open_tables(tmp_path, source)
    assert found is not None
    table = found["train"]
    assert [p.reference for p in table] == [str(n + 1) for n in range(20)]
    assert all(table.find(p.id) == i for i, p in enumerate(table))


def test_a_subset_is_a_table_of_its_own() -> None:
    whole = tables(listed(*ROWS, domain="level"), batch_rows=3)["train"]
    some = whole.subset(np.array([0, 1, 7, 10, 19]))  # 0, 1, 1, 1, 1 of the domains
    assert len(some) == 5 and [p.reference for p in some] == ["1", "2", "8", "11", "20"]
    assert some[-1].reference == "20" and some.place_of(2) == "row 8"
    assert some.find(whole[7].id) == 2 and some.find(whole[8].id) is None
    assert some.lengths.tolist() == [len(prompt.tokens) for prompt in some]
    assert [text for texts in some.texts() for text in texts] == [prompt.text for prompt in some]
    assert [text for texts in whole.texts() for text in texts] == [prompt.text for prompt in whole]
    assert some.domains is not None and some.domains.names == ("0", "1", "2")
    assert some.domains.of_n.tolist() == [0, 1, 1, 1, 1]
    assert some.domains.weights.tolist() == [1 / 5, 4 / 5, 0]  # as the prompts are
    assert len(some.first(3)) == 3
    of_some = some.subset(np.array([1, 4]))
    assert [p.reference for p in of_some] == ["2", "20"]
    assert of_some.digest == whole.subset(np.array([1, 19])).digest
    assert len({whole.digest, some.digest, of_some.digest}) == 3
    with pytest.raises(IndexError):
        of_some[2]
    # Weights that the config gives stay in proportion, where a domain has prompts left.
    weights = {"0": 1, "1": 2, "2": 5}
    weighted = tables(listed(*ROWS, domain="level", weights=weights))["train"]
    left = weighted.subset(np.array([0, 2, 5, 8])).domains
    assert left is not None and np.allclose(left.weights, [1 / 6, 0, 5 / 6])

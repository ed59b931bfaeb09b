import pytest
from rlax_code.reward import code_of


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("x = 1", "x = 1"),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("first\n```python\nx = 1\n```\nbetter\n```py\nx = 2\n```\nend", "x = 2\n"),
        ("```\nx = 1\n```\n```bash\nls\n```", "x = 1\n"),  # another language does not count
        ("~~~Python3 title\nx = 1\n~~~", "x = 1\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),  # the longer fence
        ("```python\nx = 1", "x = 1"),  # cut off
        ("  ```python\nx = 1\n  ```", "x = 1\n"),
        ("```python\nprint('```')\n```", "print('```')\n"),  # not at the beginning of its line
        ("```python\n```", ""),
        ("```json\n{}\n```", "```json\n{}\n```"),
        ("", ""),
        ("```", ""),
        ("```python", ""),
    ],
)
def test_the_last_block_of_python_is_the_code(completion: str, code: str) -> None:
    assert code_of(completion) == code


def test_a_megabyte_of_fences_ends() -> None:
    assert code_of("```\n" * 250_000) == ""
    assert code_of("`" * 1_000_000) == ""
    assert code_of("```py " + " \t" * 500_000).strip() == ""
    assert code_of("~" * 1_000_000 + "`") == "~" * 1_000_000 + "`"
    assert code_of("```" + "a" * 1_000_000 + "`").endswith("a`")
    assert code_of("```" + " \t" * 500_000 + "`").endswith("\t`")

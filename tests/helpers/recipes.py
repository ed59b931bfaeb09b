"""What a recipe needs, small and on this machine: its data set, and a model of its family.

A directory stands in for a data set of the hub: it has the same splits and columns, and the card
that names them. Everything else of a recipe stays as it is printed.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tiny_models
from data_sets import write_lines
from safetensors.numpy import save_file
from small_tokenizers import CHATML, DATED, byte_level

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs/recipes"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.yml"))

_BOX = r"So the answer is \boxed{%d}."
_MATH = {"level": "Level 1", "type": "Algebra"}
_TESTS = ["assert add_%d(1) == %d", "assert add_%d(2) == %d", "assert add_%d(3) == %d"]


def _chat(question: str, answer: str) -> list[dict[str, str]]:
    return [{"content": question, "role": "user"}, {"content": answer, "role": "assistant"}]


def _gsm8k(n: int) -> dict[str, Any]:
    return {"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"}


def _math(n: int) -> dict[str, Any]:
    row = {"problem": f"What is {n} + 1?", "solution": _BOX % (n + 1), "id": str(n)}
    return row | _MATH | {"expected_answer": str(n + 1)}


def _mbpp(n: int) -> dict[str, Any]:
    tests = [test % (n, n + k) for k, test in enumerate(_TESTS, 1)]
    row = {"task_id": n, "text": f"Write a function to add {n}.", "test_list": tests}
    code = f"def add_{n}(x):\n    return x + {n}"
    return row | {"code": code, "test_setup_code": "", "challenge_test_list": []}


def _deepmath(n: int) -> dict[str, Any]:
    row = {"question": f"What is {n} + 1?", "final_answer": str(n + 1), "topic": "Algebra"}
    return row | {"difficulty": 3.0} | {f"r1_solution_{k}": _BOX % (n + 1) for k in (1, 2, 3)}


def _numina(n: int) -> dict[str, Any]:
    problem, solution = f"What is {n} plus 1?", _BOX % (n + 1)
    row = {"source": "synthetic_math", "problem": problem, "solution": solution}
    return row | {"messages": _chat(problem, solution)}


def _no_robots(n: int) -> dict[str, Any]:
    prompt = f"Write a word with {n} letters."
    row = {"prompt": prompt, "prompt_id": f"{n:064x}", "category": "Generation"}
    return row | {"messages": _chat(prompt, "Here it is: " + "a" * (n % 9))}


# Name on the hub -> configuration, splits, and a row; as their cards have them.
DATA: dict[str, tuple[str, Sequence[str], Any]] = {
    "openai/gsm8k": ("main", ("train", "test"), _gsm8k),
    "zwhe99/MATH": ("default", ("train", "test", "math500", "math4500"), _math),
    "zwhe99/DeepMath-103K": ("default", ("train",), _deepmath),
    "google-research-datasets/mbpp": ("full", ("train", "test", "validation", "prompt"), _mbpp),
    "AI-MO/NuminaMath-CoT": ("default", ("train", "test"), _numina),
    "HuggingFaceH4/no_robots": ("default", ("train", "test"), _no_robots),
}
# Directory below models/ -> family of tiny_models.py.
MODELS = {
    "llama-3.2-1b-instruct": "llama32",
    "llama-3.2-3b-instruct": "llama32",
    "llama-3.1-8b-instruct": "llama3",
    "qwen3-1.7b": "qwen3",
    "qwen3-1.7b-base": "qwen3",
    "qwen3-8b": "qwen3",
    "gemma-3-1b-it": "gemma3",
}


def write_data(name: str, directory: Path, rows: int = 400) -> str:
    """A copy of a data set; returns what ``dataset`` names it by."""
    subset, splits, row = DATA[name]
    there = directory / "data" / name.partition("/")[2]
    there.mkdir(parents=True)
    listed = [{"split": split, "path": f"{split}.jsonl"} for split in splits]
    card = json.dumps({"configs": [{"config_name": subset, "data_files": listed}]})
    (there / "README.md").write_text(f"---\n{card}\n---\n")
    for k, split in enumerate(splits):
        write_lines(there / f"{split}.jsonl", [row(k * rows + n) for n in range(rows)])
    return f"./data/{there.name}"


def write_model(model: str, directory: Path) -> Path:
    """A Hugging Face directory of the family; Qwen3's has the tokenizer of the real models."""
    reference, vocabulary = tiny_models.known(MODELS[model]), 272
    if MODELS[model] == "qwen3":
        maxtext = find_spec("maxtext")
        assert maxtext is not None and maxtext.submodule_search_locations
        assets = Path(maxtext.submodule_search_locations[0]) / "assets/tokenizers"
        shutil.copytree(assets / "qwen3-tokenizer", directory)
        vocabulary = 151936
    else:
        byte_level(directory, template=DATED if MODELS[model] == "llama32" else CHATML)
    shapes = dict(reference["tensors"])
    for name in shapes.keys() & {"model.embed_tokens.weight", "lm_head.weight"}:
        shapes[name] = (vocabulary, *shapes[name][1:])
    kind = reference["config"]["model_type"]
    save_file(tiny_models.weights(shapes, kind), directory / "model.safetensors", {"format": "pt"})
    config = reference["config"] | {"vocab_size": vocabulary, "max_position_embeddings": 32768}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def data_sets(section: Mapping[str, Any], key: str = "rlax") -> dict[str, str]:
    """Dotted key -> the name of the data set there."""
    found = {}
    for name, value in section.items():
        if name == "dataset":
            found[f"{key}.{name}"] = value
        elif isinstance(value, Mapping):
            found |= data_sets(value, f"{key}.{name}")
    return found


def local_data(section: Mapping[str, Any], directory: Path) -> list[str]:
    """Writes the data sets of a section ``rlax:``; returns the arguments that name the copies."""
    named = data_sets(section)
    there = {name: write_data(name, directory) for name in set(named.values())}
    return [f"{key}={there[name]}" for key, name in named.items()]

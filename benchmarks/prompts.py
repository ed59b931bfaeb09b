"""Measures a data set of prompts: time to the first prompt, memory, and time per RL step.

    .venv/bin/python benchmarks/prompts.py --count 10000 1000000

The prompts are short questions in a file of JSON lines. Each figure is from a process of its own:
"cold" prepares the data set, "prepared" opens a data set prepared before. A step chooses 64
prompts and saves the run state, as JSON; ``pass_rates.py`` measures the cost of pass rates.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow  # noqa: F401  as the trainer has it, so that importing it is not measured
import rlax_curation
from rlax_datasets import JsonlConfig, JsonlSource
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from rlax_plugin.api import Tokenizer
from rlax_plugin.config import RlaxSection
from rlax_plugin.pass_rates.pass_rate_table import PassRateTable
from rlax_plugin.resume.run_state import RunState

STEPS, PROMPTS = 100, 64
SAMPLERS = {
    "shuffled": rlax_curation.Shuffled,
    "learnability": lambda: rlax_curation.Learnability(rlax_curation.LearnabilityConfig()),
}


def write_tokenizer(directory: Path) -> None:
    """Writes a tokenizer with a token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    directory.mkdir()
    backend.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": alphabet[0]}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def write_prompts(path: Path, count: int) -> None:
    with path.open("w") as file:
        for n in range(count):
            row = {"question": f"What is {n} + {n % 97}?", "answer": n + n % 97, "level": n % 5}
            file.write(json.dumps(row) + "\n")


def measure(directory: Path, count: int, *, steps: bool) -> dict[str, Any]:
    """Returns the figures of this process, which must not have read anything before."""
    tokenizer = Tokenizer.load(directory / "model", "tokenizer_path")
    config = JsonlConfig(path=str(directory / f"{count}.jsonl"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s, cpu_s = time.perf_counter(), time.process_time()
    table = JsonlSource(config, tokenizer, max_tokens=64, deadline_s=600).prompts("train")
    first = table[0]
    found: dict[str, Any] = {
        "first prompt, s": time.perf_counter() - began_s,
        "CPU of this process, s": time.process_time() - cpu_s,
        "CPU of the reading process, s": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]),
        "memory of this process, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "of it for the prompts, MB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        / 1024,
        "memory of the reading process, MB": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        / 1024,
    }
    assert len(table) == count and first.reference == "0"
    if not steps:
        return found
    section = RlaxSection.model_validate(
        {"prompt_source": {"name": "x"}, "rewards": [{"name": "x"}]}
    )
    for name, make in SAMPLERS.items():
        rates = PassRateTable(count, 32)
        state = RunState(section, table, make(), rates)
        for index in np.random.default_rng(0).integers(count, size=640).tolist():
            rates.observe(index, 1, 1, 0)
        state.choose(PROMPTS, 0)
        began_s, written = time.process_time(), 0
        for _ in range(STEPS):
            state.choose(PROMPTS, 0)
            state.open.clear()
            written = len(json.dumps(state.state().document))
        found[f"{name}: a step, ms of CPU"] = 1000 * (time.process_time() - began_s) / STEPS
        found[f"{name}: run state, kB"] = written / 1000
    return found


def in_a_process(directory: Path, count: int, how: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--in", str(directory), "--how", how]
    environment = os.environ | {"XDG_CACHE_HOME": str(directory / "cache")}
    done = subprocess.run(
        [*command, "--count", str(count)], env=environment, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--in", dest="directory", help=argparse.SUPPRESS)
    parser.add_argument("--how", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.directory:
        found = measure(Path(given.directory), given.count[0], steps=given.how == "prepared")
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_tokenizer(directory / "model")
        for count in given.count:
            write_prompts(directory / f"{count}.jsonl", count)
            for how in ("cold", "prepared"):
                for what, value in in_a_process(directory, count, how).items():
                    print(f"{count:>9,} prompts, {how}: {what}: {value:.3g}", flush=True)


if __name__ == "__main__":
    main()

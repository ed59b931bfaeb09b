"""The model and the arguments that vLLM's server is started with, and what ``rlax check`` says."""

from dataclasses import replace
from pathlib import Path

import pytest
from part_stubs import SourceStub
from rlax_vllm import checking
from rlax_vllm.model import context_tokens, model_of, server_arguments
from rlax_vllm.options import OWN, VllmConfig
from vllm_versions import NEW, PROMPT, VOCAB, TinyModel

from rlax_plugin.api import ConfigError

PYTHON = "/opt/vllm/bin/python"


def test_the_server_gets_the_runs_model_and_limits() -> None:
    model = TinyModel()
    context, config = model.context(), VllmConfig(python=PYTHON)
    described = model_of(config, context)
    layers, heads = (model.maxtext.num_decoder_layers, model.maxtext.num_kv_heads)
    assert (described.vocabulary, described.head_dim, described.dtype) == (VOCAB, 32, "float32")
    # Keys and values of 16 samples and one that is scored, in blocks of 128 tokens.
    assert described.cache_bytes == 2 * layers * heads * 32 * 4 * 17 * 128
    assert described.weights_bytes == sum(a.nbytes for a in model.tensors(1).values())
    assert context_tokens(context) == PROMPT + NEW + 1
    assert described.content["max_position_embeddings"] >= PROMPT + NEW + 1
    assert model_of(VllmConfig(python=PYTHON, cache_bytes=5), context).cache_bytes == 5
    assert model_of(VllmConfig(python=PYTHON, dtype="bfloat16"), context).dtype == "bfloat16"
    given = {"enable-prefix-caching": False, "trust-remote-code": True, "block-size": 16}
    written = server_arguments(
        VllmConfig(python=PYTHON, arguments=given), context, described, "/d/model"
    )
    assert written == [
        "--model=/d/model",
        "--served-model-name=rlax",
        "--load-format=dummy",
        "--dtype=float32",
        f"--max-model-len={PROMPT + NEW + 1}",
        "--max-num-seqs=16",
        f"--kv-cache-memory-bytes={described.cache_bytes}",
        "--generation-config=vllm",
        "--logprobs-mode=processed_logprobs",
        "--worker-extension-cls=rlax_vllm_inside.Extension",
        "--seed=0",
        "--skip-tokenizer-init",
        "--enable-scale-out",
        "--disable-log-stats",
        "--disable-uvicorn-access-log",
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "--trust-remote-code",
        "--block-size=16",
    ]
    # Those that a user may not set.
    names = [one.removeprefix("--").partition("=")[0] for one in written[:15]]
    assert {*names, "uds", "host", "port"} == set(OWN)


def test_check_describes_the_model_and_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    source, config = SourceStub(), VllmConfig(python=PYTHON)
    context = replace(TinyModel().context(), part=lambda *choice: source)
    monkeypatch.setattr(checking, "installed", lambda python: "0.31.0")
    result = checking.check(config, context)
    ((key, said),) = result.warnings
    assert (key, said) == ("rlax.rollouts.engine.python", "vLLM 0.31.0: tested are 0.32.0")
    assert result.says["vLLM serves"] == "LlamaForCausalLM in float32"
    assert len(result.memory) == 4 and all(result.memory.values())
    monkeypatch.setattr(checking, "installed", lambda python: "0.32.0")
    assert checking.check(config, context).warnings == []
    source.stop_strings = ("Q:",)
    with pytest.raises(ConfigError, match="its samples end at 'Q:': the engine vllm has no stop"):
        checking.check(config, context)


def test_heads_that_vllm_on_cpus_does_not_take_are_refused() -> None:
    context = TinyModel("head_dim=16").context()
    with pytest.raises(ConfigError, match="takes one of 32, 64") as error:
        checking.check(VllmConfig(url=f"unix:{Path('/x')}"), context)
    assert (error.value.key, error.value.value) == ("head_dim", 16)

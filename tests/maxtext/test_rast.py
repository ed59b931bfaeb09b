"""RAST: a larger model's logits, shifted by what has changed in a smaller one."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rlax_rast
from rlax_arithmetic.tokenizer import EOS_ID
from tiny_engine import TINY, Case, log_softmax, prompts_of, random_weights, reference_logprobs
from tiny_models import write_tokenizer

from maxtext_overrides.sampler.combined_model import CombinedModel
from maxtext_overrides.sampler.decode import DecodeEngine, Prefill
from maxtext_overrides.worker_slots import worker_config
from rlax_plugin.base.errors import ConfigError, WorkerError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Canary, SamplingParams
from rlax_plugin.build import build_part, registry_for
from rlax_plugin.config.loading import of_yaml, resolve
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.rollout.batching.slots_engine import SlotsConfig
from rlax_plugin.run.start.preflight import check_start
from rlax_plugin.testing import publish_version
from rlax_plugin.weights.kept_versions import kept_version, record_versions, versions_to_json
from rlax_plugin.weights.verification import take_version

REPO = Path(__file__).parents[2]
LENGTHS = {"max_prefill_predict_length": 48, "max_target_length": 60}
LARGER = {"base_num_decoder_layers": 3, "base_emb_dim": 48, "base_mlp_dim": 96}
NEW = 8


def guided(case, after, before, small):
    """A decode engine for a case's model, with a smaller one beside it."""

    def combine(model):
        members = {"after": small.engine.model, "before": small.engine.model}
        beside = {"after": after, "before": before, "strength": np.float32(0)}
        return CombinedModel(model, members, rlax_rast._shifted), beside

    return DecodeEngine(case.config, keeps=True, combine=combine)


@pytest.fixture(scope="module")
def models():
    small, large = Case(**LENGTHS), Case(**LENGTHS, **LARGER)
    after, before = (random_weights(small.engine, seed) for seed in (1, 2))
    engine = guided(large, after, before, small)
    return SimpleNamespace(small=small, large=large, after=after, before=before, engine=engine)


def shifted(models, strength, prompt, tokens):
    """The formula on three whole forward passes, in float64."""
    large = models.large.completion_logits(prompt, tokens)
    after, before = (
        models.small.completion_logits(prompt, tokens, weights)
        for weights in (models.after, models.before)
    )
    return large + strength * (after - before)


@pytest.mark.parametrize("strength", [0.5, -1.0, 2.0])
def test_log_probs_are_those_of_three_forward_passes(models, strength):
    weights = models.large.weights | {"strength": np.float32(strength)}
    sampling = SamplingParams(0.7, 0, 0.9, max_new_tokens=NEW)
    first, second = prompts_of(5, 20)
    models.engine.reset()
    models.engine.insert(
        weights, [Prefill(first, (0, 5), (1, 2), sampling), Prefill(second, (3,), (4,), sampling)]
    )
    found = {one.slot: one for one in models.engine.decode(weights, 1000, False)}
    for slot, prompt in ((0, first), (5, first), (3, second)):
        logits = shifted(models, strength, prompt, found[slot].tokens)
        full, truncated = reference_logprobs(logits, found[slot].tokens, sampling)
        np.testing.assert_allclose(found[slot].logprobs, full, atol=1e-4)
        np.testing.assert_allclose(found[slot].truncated_logprobs, truncated, atol=1e-4)
    # A next turn, behind what a slot keeps of all three models.
    context = np.concatenate([second, found[3].tokens, [7, 9]]).astype(np.int32)
    greedy = SamplingParams(0.0, max_new_tokens=NEW)
    before = models.engine.prefill_kept_total
    models.engine.insert(weights, [Prefill(context, (3,), (0,), greedy)])
    (turn,) = models.engine.decode(weights, 1000, False)
    assert models.engine.prefill_kept_total - before == len(second) + NEW - 1
    logits = shifted(models, strength, context, turn.tokens)
    np.testing.assert_array_equal(turn.tokens, logits.argmax(axis=-1))
    scored = models.engine.logprobs(weights, np.concatenate([context, turn.tokens]))
    np.testing.assert_allclose(scored[len(context) - 1 :], turn.logprobs, atol=1e-4)


def test_without_strength_it_is_the_larger_model(models):
    (prompt,) = prompts_of(6)
    requests = [Prefill(prompt, (0, 1), (1, 2), SamplingParams(max_new_tokens=NEW))]
    models.engine.reset()
    models.engine.insert(models.large.weights, requests)
    ours = {one.slot: one for one in models.engine.decode(models.large.weights, 1000, False)}
    for slot, alone in models.large.generate(requests).items():
        np.testing.assert_array_equal(ours[slot].tokens, alone.tokens)
        np.testing.assert_allclose(ours[slot].logprobs, alone.logprobs, atol=1e-6)


def test_the_smaller_model_before_rl_becomes_that_after_it(models):
    engine = guided(models.small, models.after, models.before, models.small)
    weights = models.before | {"strength": np.float32(1)}
    (prompt,) = prompts_of(6)
    requests = [Prefill(prompt, (0, 1), (1, 2), SamplingParams(max_new_tokens=NEW))]
    engine.insert(weights, requests)
    ours = {one.slot: one for one in engine.decode(weights, 1000, False)}
    for slot, alone in models.small.generate(requests, models.after).items():
        np.testing.assert_array_equal(ours[slot].tokens, alone.tokens)
        np.testing.assert_allclose(ours[slot].logprobs, alone.logprobs, atol=1e-5)


def test_a_smaller_model_is_loaded_with_the_local_keys_of_the_worker_alone():
    large = resolve(TINY, ("hardware=cpu",))
    small = ("hardware=gpu", "skip_jax_distributed_system=false", "jax_cache_dir=/nowhere")
    small = resolve(TINY, (*small, "ici_tensor_parallelism=2", "base_emb_dim=48"))
    keys = {k: v for k, v in large.maxtext.items() if k != "skip_jax_distributed_system"}
    context = BuildContext.outside_run(large.section, replace(large, maxtext=keys))
    loaded = worker_config(SlotsConfig(), context, small)
    assert (loaded.hardware, loaded.base_emb_dim, loaded.ici_tensor_parallelism) == ("cpu", 48, 1)
    assert loaded.skip_jax_distributed_system  # as where no key says so: there are no other hosts
    assert loaded.jax_cache_dir != "/nowhere"


class Runs:
    """Three runs that have ended; after RL, the smaller model stops at once."""

    def __init__(self, directory):
        self.directory, self.weights, self.cases = directory, {}, {}
        for name, seed, keys in (("large", 0, LARGER), ("before", 1, {}), ("after", 1, {})):
            config = self.config(name, **keys)
            case = self.cases[name] = Case(**keys, vocab_size=32)
            weights = self.weights[name] = random_weights(case.engine, seed)
            (table,) = [one for one in weights if "token_embedder" in one]
            weights[table] = weights[table].at[:, 0].add(3.0)  # the sign of what the head reads
            if name == "after":
                weights[table] = weights[table].at[EOS_ID, 0].add(100.0)
            tokens = prompts_of(8)[0] % 32
            self.list(name, config, Canary(tokens, case.engine.logprobs(weights, tokens), 1e-4))

    def config(self, name, **keys):
        return resolve(
            TINY,
            (
                f"base_output_directory={self.directory}",
                f"run_name={name}",
                "scan_layers=false",
                "vocab_size=32",
                "tokenizer_type=huggingface",
                f"tokenizer_path={REPO}/plugins/rlax_arithmetic/tokenizer_files",
                "rlax.prompt_source={name: arithmetic, digits: 2}",
                "rlax.rewards=[{name: exact_answer}]",
                "rlax.rollouts.slots=8",
                "rlax.evaluation={problems: 16, samples: 2, k: [1]}",
                "rlax.trackers=[]",
                *(f"{key}={value}" for key, value in keys.items()),
            ),
        )

    def list(self, name, config, canary):
        """Writes what a run leaves behind."""
        from rlax_orbax.store import OrbaxStore

        files = RunFiles(self.directory / name)
        files.put("config.yml", config.to_yaml())
        if not (self.directory / name / "weights").exists():
            path = files.location("weights/00000000")
            version = publish_version(OrbaxStore(), path, self.weights[name], canary=canary)
        else:
            version = replace(kept_version(files), canary=canary)
        record_versions(files, versions_to_json([version]))

    def engine(self, **options):
        """The engine of a worker of the larger run."""
        where = {name: f"{self.directory / name}@0" for name in ("after", "before")}
        choice = json.dumps({"name": "rast", "warm_up": False, **where, **options})
        files = RunFiles(self.directory / "large")
        overrides = (f"rlax.rollouts.engine={choice}", "rlax.plugins=[rlax_rast]")
        config = of_yaml(files.config(), "config.yml", overrides)
        section = config.section
        context = BuildContext.outside_run(section, config)
        key = "rlax.rollouts.engine"
        return build_part("rollout_engine", section.rollouts.engine, key, context), config


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("rast"))


async def test_a_version_is_verified_alone_and_used_with_the_smaller_models(runs):
    engine, _ = runs.engine(strength=0.02)
    try:
        await take_version(engine, kept_version(RunFiles(runs.directory / "large")))
        assert not engine.capabilities.logprobs  # a run that trains rejects such a worker
        tokens = prompts_of(8)[0] % 32
        found = await engine.score(tokens)
    finally:
        engine.close()
    parts = [
        runs.cases[name].completion_logits(tokens[:1], tokens[1:], runs.weights[name])
        for name in ("large", "after", "before")
    ]
    whole = log_softmax(parts[0] + 0.02 * (parts[1] - parts[2]))
    expected = whole[np.arange(7), tokens[1:]]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    alone = log_softmax(parts[0])[np.arange(7), tokens[1:]]
    assert np.abs(expected - alone).max() > 0.1


@pytest.mark.parametrize("wrong", ["canary's log-prob", "has fingerprint"])
async def test_a_smaller_models_weights_must_be_the_published_ones(runs, wrong):
    files = RunFiles(runs.directory / "before")
    version = kept_version(files)
    (part,) = version.parts
    if "canary" in wrong:
        canary = replace(version.canary, logprobs=version.canary.logprobs - 1)
        other = replace(version, canary=canary)
    else:
        name, spec = max(part.tensors.items())
        tensors = {**part.tensors, name: replace(spec, fingerprint=spec.fingerprint ^ 1)}
        other = replace(version, parts=(replace(part, tensors=tensors),))
    record_versions(files, versions_to_json([other]))
    engine, _ = runs.engine()
    try:
        with pytest.raises(WorkerError, match=rf"engine\.before = .*{wrong}"):
            await engine.prepare()
    finally:
        engine.close()
        record_versions(files, versions_to_json([version]))


@pytest.mark.parametrize(
    ("option", "keys", "error"),
    [
        ("before@7", {}, "does not exist; available: 0"),
        ("before@0", {"tokenizer_path": "tokenizer"}, "must have the tokenizer of this run: id"),
    ],
)
def test_runs_that_do_not_fit_are_refused(runs, option, keys, error, tmp_path):
    write_tokenizer(32, tmp_path / "tokenizer")
    keys = {k: str(tmp_path / v) if k == "tokenizer_path" else v for k, v in keys.items()}
    canary = kept_version(RunFiles(runs.directory / "before")).canary
    runs.list("before", runs.config("before", **keys), canary)
    text = str(runs.directory / option)
    try:
        with pytest.raises(ConfigError, match=f"engine.before = '{text}': .*{error}"):
            runs.engine(before=text)
    finally:
        runs.list("before", runs.config("before"), canary)


def test_training_is_refused(runs):
    engine = "rlax.rollouts.engine={name: rast, after: a, before: b}"
    config = runs.config("new", **{"rlax.plugins": "[rlax_rast]"}).with_content({})
    config = of_yaml(config.to_yaml(), "config.yml", [engine])
    with pytest.raises(ConfigError, match=r"engine.name = 'rast': .* rlax eval RUN or rlax serve"):
        check_start(config, registry_for(config.section), remote=False)


@pytest.mark.ci
def test_rlax_eval_measures_it(runs):
    where = f"after: {runs.directory}/after@0, before: {runs.directory}/before@0"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rlax_plugin", "eval", "large", "--json"),
            f"rlax.rollouts.engine={{name: rast, {where}, warm_up: false}}",
            *("rlax.plugins=[rlax_rast]", "rlax.launcher.workers=1"),
        ],
        cwd=runs.directory,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(done.stdout)["sets"]["test"]
    assert measured["length_mean"]["value"] == 1.0  # the larger model alone hardly ever stops

"""The benchmark task: exact prompt lengths, the same everywhere, a reward with two outcomes."""

import numpy as np
import rlax_synthetic
from plugin_parts import built


def source(**options):
    return built(rlax_synthetic, "prompt_source", "synthetic", **options)


def test_prompts_have_the_exact_shape_and_are_the_same_in_every_run():
    options = {"prompt_tokens": 16, "vocab_size": 512, "count": 100}
    prompts = source(**options).prompts("train")
    assert len(prompts) == 100
    tokens_bt = np.stack([p.tokens for p in prompts])
    assert tokens_bt.shape == (100, 16) and tokens_bt.dtype == np.int32
    assert tokens_bt.min() >= 1 and tokens_bt.max() <= 511
    assert len(np.unique(tokens_bt)) > 400  # 1600 samples of 511 ids miss about 22
    again = source(**options).prompts("train")
    assert [p.id for p in again] == [p.id for p in prompts]
    np.testing.assert_array_equal(np.stack([p.tokens for p in again]), tokens_bt)


def test_parity_by_hand_and_near_even_on_random_completions():
    task, reward = source(), built(rlax_synthetic, "reward", "token_parity")
    prompt = task.prompts("train")[0]
    assert [reward(prompt, text) for text in ("1 2", "1 2 3", "7", "")] == [1.0, 0.0, 1.0, 0.0]
    rng = np.random.default_rng(0)
    scores = [reward(prompt, task.decode(rng.integers(512, size=16))) for _ in range(1000)]
    assert 0.45 < np.mean(scores) < 0.55
    wrong = ("1 x", "\u0661", "1.5", "-1")
    assert [reward(prompt, text) for text in wrong] == [0.0] * 4
    assert reward(prompt, "9" * 5000) == 1.0

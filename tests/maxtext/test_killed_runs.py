"""MaxText's own loop, JetStream workers, episodes of two turns: killed, it ends as if it had not.

These scenarios, and the stranger's package beside them, pay for whole processes with MaxText in
them: an undisturbed run, and one that is killed while its worker lives on. A replay
uses what the tests have imported. Everything else about recovery is proved with the toy trainer in
``tests/integration/test_recovery.py``.
"""

import logging
import re
import signal
import subprocess
from pathlib import Path

import pytest
from data_sets import write_lines
from processes import finished, process
from runs import Run, digests, free_port, lines

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit
from rlax_plugin.tools.commands.replay import replay

ROOT = Path(__file__).parents[2]
CONFIG = "tests/configs/maxtext.yml"
STEPS = 8
# Of a step; mini-batches are dealt out by chance, which must be the same chance in each process.
UPDATES = 2
ROWS, LENGTH = 16, 32
SHOWN_ROWS, SHOWN = 4, 20
RESTORING = "restoring from this run's directory step"
IMPORTS = "imports.log"
# What MaxText and its libraries would import, and nothing here needs.
UNUSED = ("tensorflow.", "torch.", "google.cloud.aiplatform.", "sklearn.", "vllm.", "seqio.")
FEW = "test_problems: 5, validation_problems: 5"

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def settings(directory: Path) -> tuple[str, ...]:
    """Many parts at once: two updates of packed rows, pi_old by the trainer, a reference, a critic.

    The temperature, a bound and the coefficient of the KL change from step to step, as does the
    weight of the demonstrations beside RL.

    Each answer is an expression to calculate, and the policy answers once more behind its value.
    """
    corrections = (
        "{name: truncated_importance_sampling}",
        "{name: icepop, high: {from: 5, to: 3, steps: 6, shape: cosine}}",
        "{name: sequence_mask, low: 0.99, high: 1.01}",
        "{name: veto}",
    )
    lines = [{"prompt": f"{n}+{n}=", "completion": f"{2 * n}"} for n in range(SHOWN)]
    data = write_lines(directory / "shown.jsonl", lines)
    tokenizer = "plugins/rlax_arithmetic/tokenizer_files"
    shown = f"{{name: jsonl, path: {data}, tokenizer: {tokenizer}, chat: false}}"
    weight = "{from: 0.5, to: 0.1, steps: 4}"
    return (
        f"rlax.trainer.demonstrations={{data: {shown}, rows: {SHOWN_ROWS}, weight: {weight}}}",
        f"base_output_directory={directory}",
        f"dump_hlo_local_dir={directory}/dumped",  # where XLA would dump programs, unasked
        f"steps={UPDATES * STEPS}",
        f"rlax.objective.mini_batches={UPDATES}",
        f"per_device_batch_size={(ROWS + SHOWN_ROWS) // UPDATES}",
        f"max_target_length={LENGTH}",
        'rlax.environment={name: calculator, begin: "", end: ""}',
        "rlax.episodes={max_turns: 2, max_tokens: 24}",
        f"rlax.prompt_source={{name: arithmetic, digits: 1, {FEW}}}",
        # Of random text about every second one matches, so that groups differ in it.
        'rlax.rewards=[{name: format, pattern: "[0-4]", match: search, timeout_s: 50}]',
        f"rlax.batches.rows={ROWS}",
        "rlax.batches.sequences_per_row=2",
        "rlax.objective.old_policy=reprefill",
        f"rlax.objective.corrections=[{', '.join(corrections)}]",
        "rlax.objective.kl={coefficient: 0.04, adaptive: {target: 0.01, horizon: 64}}",
        "rlax.rollouts.temperature={from: 1.2, to: 0.8, steps: 6}",
        "rlax.objective.advantage={name: gae, gamma: 0.99, lam: 0.9}",
        "rlax.signals=[{name: critic, epochs: 2, mini_batches: 2}]",
    )


def train(
    *settings: str, kill_at: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return finished("train", CONFIG, *settings, cwd=ROOT, kill_at=kill_at, **environment)


def kill_while_restoring(directory: Path, where: tuple[str, ...]) -> None:
    """Begins to resume a run, and kills the trainer when MaxText has begun to restore."""
    log = directory / "logs/trainer.log"
    assert RESTORING not in log.read_text()
    run = Run(ROOT, *where, config=CONFIG)
    run.until(lambda: RESTORING in log.read_text(), "restoring")
    run.process.kill()
    run.process.communicate()


def final_weights(run: Path) -> dict[str, bytes]:
    """Every byte of the last version's arrays; uncompressed float32 with their checksums."""
    (version,) = (run / "weights").glob(f"{STEPS:08d}-*")
    chunks = [path for path in version.rglob("*") if path.is_file() and "c" in path.parts]
    return {str(path.relative_to(version)): path.read_bytes() for path in chunks}


def audited(run: Path) -> int:
    """How often the run was started again, once nothing in its records contradicts them."""
    report = audit(RunFiles(run))
    assert report.violation is None, report.violation
    return report.figures.restarts


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("undisturbed")
    done = train(*settings(directory), PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert audited(directory / "maxtext") == 0
    (directory / IMPORTS).write_text(done.stderr)
    return directory / "maxtext"


def test_imports_stay_within_their_budget(undisturbed):
    """Each process of a run pays for its imports, which are most of a short run."""
    logs = undisturbed / "logs"
    # The trainer's first imports are on its terminal, before the run has a log.
    first = (undisturbed.parent / IMPORTS).read_text()
    trainer, worker = first + (logs / "trainer.log").read_text(), (logs / "local-0.log").read_text()
    for said, most in ((trainer, 6300), (worker, 4800)):  # a tenth more than they were
        modules = set(re.findall(r"^import time: .*\| +(\S+)$", said, re.MULTILINE))
        assert "jax.numpy" in modules and len(modules) < most
        assert not [name for name in modules if name.startswith(UNUSED)]


def test_xla_dumps_no_program_unasked(undisturbed):
    assert not (undisturbed.parent / "dumped").exists()


def test_at_equal_weights_every_ratio_is_1_and_no_correction_is_active(undisturbed):
    steps = lines(undisturbed / "metrics.jsonl")
    assert len(steps) == STEPS
    for step in steps:
        assert step["staleness/max"] == 1
        assert step["logprob_gap/max"] < 1e-4
        # Of the two updates, only the first one's weights are those that generated.
        assert 0 < step["logprob_gap/tokens"] < step["objective/tokens"]
        assert step["objective/reprefill_missed"] == 0
    # The first update has a learning rate of 0, so that the second one finds equal weights too.
    # Then pi_old of the trainer's own forward pass is what the train step computes, and so is the
    # reference policy; from the next step on they differ.
    first, second = steps[:2]
    cut = {k for k in first if "masked" in k or "truncated" in k or "clip_fraction" in k}
    assert len(cut) == 6
    assert {name: first[name] for name in cut} == dict.fromkeys(cut, 0)
    assert first["objective/ratio"] == pytest.approx(1, abs=1e-5)
    assert first["objective/chi_squared"] == pytest.approx(0, abs=1e-4)
    assert first["objective/effective_sample_size"] == pytest.approx(1, abs=1e-6)
    assert first["objective/reference_kl_k3"] == pytest.approx(0, abs=1e-9)
    assert second["objective/reference_kl_k3"] > 1e-4


def test_what_changes_from_step_to_step_is_reported(undisturbed):
    steps = lines(undisturbed / "metrics.jsonl")
    temperatures = [step["schedule/rollouts.temperature"] for step in steps]
    assert temperatures == pytest.approx([1.2 - min(n, 6) / 15 for n in range(STEPS)])
    assert steps[3]["schedule/objective.corrections.1.high"] == pytest.approx(4)
    # Of 16 samples; with equal weights the KL is 0, and the coefficient falls by a fifth of 16/64.
    first, second = (step["objective/kl_coefficient"] for step in steps[:2])
    assert (first, second) == pytest.approx((0.04, 0.038), rel=1e-6)
    assert steps[0]["objective/kl_of_target"] == pytest.approx(0, abs=1e-6)
    assert len({step["objective/kl_coefficient"] for step in steps}) == STEPS


def test_demonstrations_train_beside_rl_and_are_counted_apart(undisturbed):
    steps = lines(undisturbed / "metrics.jsonl")
    assert [step["demonstrations/count"] for step in steps] == [8, 8, 4] * 2 + [8, 8]
    assert all(step["demonstrations/tokens"] >= 8 for step in steps)
    losses = [step["objective/demonstration_loss"] for step in steps]
    assert losses[0] > losses[-1] > 0
    weights = [step["schedule/trainer.demonstrations.weight"] for step in steps]
    assert weights[:5] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])


def test_episodes_of_two_turns_are_generated_as_the_trainer_scores_them(undisturbed):
    steps = lines(undisturbed / "metrics.jsonl")
    assert {step["episode/turns_mean"] for step in steps} == {2.0}
    assert max(step["logprob_gap/p95"] for step in steps) < 1e-4


def test_the_critic_learns_from_step_to_step(undisturbed):
    steps = lines(undisturbed / "metrics.jsonl")
    assert steps[0]["objective/value"] == 0 and steps[0]["objective/explained_variance"] == 0
    values = [step["objective/value"] for step in steps]
    assert len(set(values)) == STEPS
    assert all(step["objective/value_loss"] > 0 for step in steps)


@pytest.mark.timeout(900)
def test_a_killed_run_ends_with_the_same_weights(tmp_path, undisturbed):
    port = free_port()
    where = (*settings(tmp_path), "rlax.launcher={name: static}", f"rlax.network.port={port}")
    log = tmp_path / "survivor.log"
    join = ("--controller", f"127.0.0.1:{port}", "--name", "survivor")
    with process(log, "serve", *where, *join, cwd=ROOT) as worker:
        # Step 4 is recorded and trained, its snapshot has no checkpoint and step 2's has one.
        killed = train(*where, kill_at="snapshot-written:2")
        assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
        kill_while_restoring(tmp_path / "maxtext", where)
        done = train(*where)
        assert done.returncode == 0, done.stdout + done.stderr
        assert worker.wait(60) == 0, log.read_text()  # one process served all the trainers
    run = tmp_path / "maxtext"
    weights, expected = final_weights(run), final_weights(undisturbed)
    assert len(expected) > 10 and weights == expected
    assert digests(run) == digests(undisturbed)
    assert all(len(found) == 1 for found in digests(run).values())
    assert audited(run) == 1  # the one that was killed while it restored has recorded nothing


@pytest.mark.timeout(400)
def test_the_trainer_alone_makes_the_same_weights_of_the_recorded_batches(
    tmp_path, undisturbed, monkeypatch, capfd
):
    monkeypatch.chdir(ROOT)  # the config's tokenizer is named from there
    # The command writes the log of all libraries into a file, as befits a process of its own.
    monkeypatch.setattr(logging.root, "handlers", [])
    level = logging.root.level
    try:
        status = replay(str(undisturbed), out=str(tmp_path / "replay"))
    finally:
        logging.root.setLevel(level)
    assert status == 0
    assert f"identical: {STEPS + 1} versions" in capfd.readouterr().out

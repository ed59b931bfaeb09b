"""Configs that must be rejected: what is changed in a good one, and what the message must name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bad:
    """One bad config.

    Attributes:
      key: that the message begins with.
      text: in the message.
      overrides: arguments on top of the good config.
      fast: found by ``rlax check --fast`` as well.
      train: found by ``rlax train`` before anything starts, not only by ``rlax check``.
      file: lines below the good config's own.
    """

    key: str
    text: str
    overrides: tuple[str, ...] = ()
    fast: bool = True
    train: bool = True
    file: str = ""

    @property
    def id(self) -> str:
        return " ".join(self.overrides)[:60] or self.file.strip()[:60]


def bad(key: str, text: str, *overrides: str, fast: bool = True, train: bool = True) -> Bad:
    return Bad(key, text, overrides, fast=fast, train=train)


def bad_file(key: str, text: str, file: str) -> Bad:
    return Bad(key, text, file=file)


NAMES = [
    bad("run_name", "without /", "run_name=../x"),
    bad("run_name", "without \\", r"run_name=a\b"),
    bad("run_name", "dot", "run_name=.."),
    bad("run_name", "control characters", 'run_name="a\\nb"'),
    bad("run_name", "it has U+200B (ZERO WIDTH SPACE)", 'run_name="a\\u200b"'),
    bad("run_name", "surrogate", 'run_name="\\ud800"'),
    bad("run_name", "at most 128 bytes, but has 130", f"run_name={'é' * 65}"),
    bad("run_name", "without *", "run_name=a*"),
    bad("run_name", "without ::", "run_name=a::b"),
    bad("run_name", "space", "run_name=' a'"),
    bad("run_name", "must be text", "run_name=7"),
    bad("base_output_directory", "control characters", 'base_output_directory="a\\nb"'),
    bad("base_output_directory", "must be a path", "base_output_directory=[a]"),
    bad("base_output_directory", "~", "base_output_directory=~/runs"),
    bad("base_output_directory", "Protocol not known", "base_output_directory=nowhere://x"),
]

NUMBERS = [
    bad("rlax.curation.pass_threshold", "finite", "rlax.curation.pass_threshold=.nan"),
    bad("rlax.rollouts.temperature", "at least 0.001", "rlax.rollouts.temperature=1e-30"),
    bad("rlax.curation.guard.stop", "exceed warn = 0.1", "rlax.curation.guard.stop=0.2"),
    bad(
        "rlax.trainer.warm_start.pass_at_1_from",
        "less than or",
        "rlax.trainer={name: maxtext, warm_start: {pass_at_1_from: 28}}",
    ),
    bad("rlax.deadlines.group_s", "less than or equal", "rlax.deadlines.group_s=1e300"),
    bad(
        "rlax.rollouts.max_new_tokens",
        "this machine has",
        "rlax.rollouts.max_new_tokens=2_000_000_000",
    ),
    bad("rlax.batches.rows", "this machine has", "rlax.batches.rows=2_000_000_000"),
    bad("rlax.seed", "64 bits", f"rlax.seed={10**30}"),
    bad("rlax.seed", "not valid YAML", f"rlax.seed={'9' * 5000}"),
    bad("rlax.launcher.workers", "1024", "rlax.launcher.workers=1_000_000"),
]

TYPES = [
    bad("rlax.rewards", "is a list", "rlax.rewards={name: even}"),
    bad("rlax.weights.path", "text", "rlax.weights.path=3"),
    bad("rlax.weights.path", "control characters", 'rlax.weights.path="a\\0b"'),
    bad("rlax.state_dir", "control characters", 'rlax.state_dir="a\\nb"'),
    bad("rlax.weights.parameter_server", "host:port", "rlax.weights.parameter_server='a b:1'"),
]

UNKNOWN = [
    bad("rlax.trainer.nam", "unknown key", "rlax.trainer={nam: bigram}"),
    bad("rlax.trainer.warm_start", "unknown key", "rlax.trainer.warm_start.enabled=true"),
    bad(
        "rlax.warm_start",
        "rlax.trainer.warm_start is an option of trainer 'maxtext'",
        "rlax.warm_start.steps=5",
    ),
    bad(
        "rlax.allow_untested_maxtext",
        "rlax.trainer.allow_untested is an option of trainer 'maxtext'",
        "rlax.allow_untested_maxtext=true",
    ),
    bad("rlax.trainer.name", "no plug-in", "rlax.trainer.name=bigramm"),
    bad("rlax.launcher.workers", "unknown key", "rlax.launcher={name: static, workers: 2}"),
    bad("rlax.plugins", "no plug-in or module", "rlax.plugins=[nowhere]"),
    bad("rlax.plugins", "named by its entry point or module", "rlax.plugins=[../../x]"),
    bad("rlax.plugins", "implements no hook", "rlax.plugins=[json]"),
    bad("rlax.plugins", "listed twice", "rlax.plugins=[rlax_plugin.testing, rlax_plugin.testing]"),
    bad("learning_rate", "reads no such key", "learning_rate=1", fast=False),
    bad("rlax.evaluation.split", "did you mean", "rlax.evaluation.split=tset", fast=False),
    bad("rlax.evaluation.sets.\u3164", "U+3164 (HANGUL", "rlax.evaluation.sets={\u3164: {}}"),
    bad("rlax.evaluation.sets.a/b", "letters, digits", "rlax.evaluation.sets={a/b: {}}"),
    bad(
        "rlax.evaluation.sets.hard.rewards.0.name",
        "no plug-in offers",
        "rlax.evaluation.sets={hard: {rewards: [{name: x}]}}",
    ),
]

CONTRADICTIONS = [
    bad("rlax.rollouts.top_k", "must be 0 to train", "rlax.rollouts.top_k=5"),
    bad("rlax.rollouts.top_p", "must be 1.0 to train", "rlax.rollouts.top_p=0.9"),
    bad("rlax.rollouts.temperature", "above 0 to train", "rlax.rollouts.temperature=0"),
    bad("rlax.objective.mini_batches", "must divide", "rlax.objective.mini_batches=5"),
    bad(
        "steps",
        "multiple of the 2",
        "rlax.objective={epochs: 2, preset: ppo, old_policy: proximal}",
        "steps=3",
    ),
    bad("rlax.batches.rows", "at least group_size", "rlax.batches.rows=1"),
    bad(
        "rlax.episodes.max_trajectories = 4",
        "must not exceed 3: a batch has 12 rows",
        "rlax.environment.name=calculator",
        "rlax.rollouts={groups_per_step: 3, group_size: 4}",
        "rlax.episodes.max_trajectories=4",
    ),
    bad("rlax.evaluation.k", "at most", "rlax.evaluation.k=[100]"),
    bad(
        "rlax.rollouts.slots",
        "at least group_size",
        "rlax.deterministic=true",
        "rlax.evaluation.every=0",
        "rlax.rollouts.slots=2",
    ),
    bad(
        "rlax.environment",
        "must be deterministic with rlax.deterministic",
        "rlax.plugins=[rlax_plugin.testing, fickle]",
        "rlax.environment.name=fickle",
        "rlax.deterministic=true",
        "rlax.evaluation.every=0",
        fast=False,
    ),
    bad("rlax.curation.only", "does not exist", "rlax.curation.only={tmp}/kept.parquet"),
    bad(
        "rlax.curation.screening.pilots",
        "must be 0: a reward of rlax.rewards scores the samples of a whole group together",
        "rlax.plugins=[rlax_plugin.testing, group_reward]",
        "rlax.rewards=[{name: rank}]",
        "rlax.curation.screening.pilots=2",
        fast=False,
        train=False,  # it is said once the reward processes have started
    ),
    bad("rlax.objective.reference.path", "no effect", "rlax.objective.reference.path={tmp}/file"),
    bad(
        "rlax.trainer.warm_start.pass_at_1_from",
        "must not exceed",
        "rlax.trainer={name: maxtext, warm_start: {enabled: true, pass_at_1_from: 0.9}}",
    ),
    bad(
        "rlax.curation.sampler.easy",
        "must be at least minimum",
        "rlax.curation.sampler={name: greso, easy: 0.01}",
    ),
    bad(
        "rlax.rollouts.max_prompt_tokens",
        "at least 2",
        "rlax.rollouts.max_prompt_tokens=1",
        fast=False,
        train=False,
    ),
    bad(
        "rlax.prompt_source.name",
        "token 511",
        "rlax.prompt_source={name: synthetic, prompt_tokens: 4}",
        "rlax.rewards=[{name: token_parity}]",
        fast=False,
    ),
]

# {tmp} holds the file ``file`` and nothing called ``missing``.
PLACES = [
    bad("base_output_directory", "is a file", "base_output_directory={tmp}/file/below"),
    bad("base_output_directory", "name too long", f"base_output_directory={{tmp}}/{'d' * 300}"),
    bad("base_output_directory", "is a link to nothing", "base_output_directory={tmp}/dangling"),
    bad("rlax.state_dir", "is a file", "rlax.state_dir={tmp}/file"),
    bad("rlax.weights.path", "is a file", "rlax.weights.path={tmp}/file/weights"),
    bad(
        "rlax.objective.reference.path",
        "does not exist",
        "rlax.objective.kl.coefficient=0.1",
        "rlax.objective.reference.path={tmp}/missing",
    ),
    bad(
        "rlax.trainer.warm_start.directory",
        "does not exist",
        "rlax.trainer={name: maxtext, warm_start: {enabled: true, directory: {tmp}/missing}}",
    ),
]

COMMAND_LINE = [
    bad("command line", "must be key=value", "rlax..seed=1"),
    bad("run_name", "interpolation", "run_name=${oc.env:HOME}"),
    bad("rlax.seed", "not valid YAML", "rlax.seed=!!python/object/apply:os.system [id]"),
    bad("rlax.prompt_source", "deeper than", f"rlax.prompt_source={'[' * 1000}{']' * 1000}"),
]

FILES = [
    bad_file("{config}", "found undefined alias", "x: *nowhere"),
    bad_file("{config}", "not valid YAML", "\tx: 1"),
    bad_file("{config}", "not valid YAML", "x: \x00"),
    bad_file("{config}", "a key must be text", "? [a, b]\n: 1"),
    bad_file("{config}", "deeper than", "x: &x {y: *x}"),
    bad_file(
        "{config}",
        "100,000 values",
        "\n".join(
            ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
            + [
                f"{k}: &{k} [{', '.join([f'*{j}'] * 10)}]"
                for j, k in zip("abcdefg", "bcdefgh", strict=True)
            ]
        ),
    ),
    bad_file("{config}: the key 1", "must be text", "1: x"),
    bad_file("{config}: the key '\\x1b[31m'", "must be text", '"\\e[31m": x'),
    bad_file("x", "64 bits", f"x: {10**40}"),
    bad_file("x", "not <class 'bytes'>", "x: !!binary aGk="),
    bad_file("base_config", "no such file", f"base_config: {'l' * 3000}.yml"),
]

ALL = NAMES + NUMBERS + TYPES + UNKNOWN + CONTRADICTIONS + PLACES + COMMAND_LINE + FILES

"""Everything that a plug-in may import, beside ``rlax_plugin.testing``: the names imported here.

Both are kept stable: a name is renamed or removed only with a line in CHANGELOG.md. Importing this
module imports no JAX; docs/plugin_hooks.md says which hook takes and returns what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlax_plugin.batching.decode_engine import MAX_STOP_IDS, DecodeSlots, Prefill, SlotOutput
from rlax_plugin.batching.jobs import SIDE_CHANNELS, Job, rejection
from rlax_plugin.batching.scheduler import Scheduler
from rlax_plugin.batching.waited_for import AllWaitedFor, WaitedFor
from rlax_plugin.config import Choice, NoOptions, PathText, RlaxSection, Rollouts, Section
from rlax_plugin.config.addresses import is_loopback
from rlax_plugin.config.base import INT32_MAX, NonNegativeInt, PositiveInt, Processes, Seconds
from rlax_plugin.config.loading import ResolvedConfig, load_section
from rlax_plugin.config.schedules import Scheduled, first_above, value_at

# Errors, and words for their messages.
from rlax_plugin.errors import (
    ConfigError,
    DeadlineError,
    RlaxError,
    TrainingError,
    WeightsError,
    WeightsUnreadableError,
    WeightsUnwritableError,
    WorkerError,
    alternatives,
)
from rlax_plugin.metrics.tracking import BackgroundTracker, Sink, TrackedRun, TrackerConfig, require

# Objectives.
from rlax_plugin.objective.advantages import Outcomes, completions, of_batch, per_group
from rlax_plugin.objective.arrays import ArraySpec
from rlax_plugin.objective.batches import ARRAYS, device_arrays
from rlax_plugin.objective.inputs import TokenInputs, TokenOutputs
from rlax_plugin.objective.loss import (
    ObjectiveSlots,
    Ratio,
    check_weight_is_known,
    loss_weight,
    make_loss,
    own_terms,
    resolve,
)
from rlax_plugin.objective.presets import Preset, presets_from_yaml
from rlax_plugin.objective.ratios import kl_estimate, kl_token_rewards, ratio_of
from rlax_plugin.objective.slots import Aggregation
from rlax_plugin.objective.terms import LossTerm, Terms, scale_names, whole_update
from rlax_plugin.objective.update_sums import UPDATE_ARRAYS, update_sums
from rlax_plugin.pass_rates.intervals import beta_interval, mixed_probability

# Hooks, and the interfaces of parts.
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.compiling import CompiledProgram, CompileTarget
from rlax_plugin.ports.curation import Filter, PassRates, Sampler
from rlax_plugin.ports.environment import (
    Answer,
    Environment,
    EpisodeLimit,
    Outcome,
    Session,
)
from rlax_plugin.ports.hookspecs import hookimpl
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.ports.observer import Observer
from rlax_plugin.ports.orders import Followers, Order
from rlax_plugin.ports.protocols import (
    Arrays,
    BuildContext,
    CheckResult,
    EpisodeReward,
    Extension,
    GroupReward,
    Launcher,
    PromptSource,
    Reward,
    RolloutEngine,
    Tracker,
    WeightStore,
)
from rlax_plugin.ports.scaling import ScalingRule
from rlax_plugin.ports.training import (
    ConvertibleModel,
    Exported,
    FollowerPort,
    Publication,
    Trainer,
    TrainerPort,
)
from rlax_plugin.processes.limited import LimitedFunction, OverLimitError
from rlax_plugin.processes.python import python_command
from rlax_plugin.prompts.checking import completion_text, stop_strings_of
from rlax_plugin.prompts.config import DatasetConfig
from rlax_plugin.prompts.prompt_files import matching_files, opened
from rlax_plugin.prompts.row_columns import BrokenRow
from rlax_plugin.prompts.source import DatasetSource
from rlax_plugin.prompts.table import Domains, PromptTable
from rlax_plugin.prompts.text_source import TextRow, TextSource, model_tokenizer
from rlax_plugin.records.files import PREPARED, RunFiles
from rlax_plugin.records.places import check_file_writable, check_readable, new_directory
from rlax_plugin.records.private import exposed, intrusion
from rlax_plugin.rpc.doors import client_channel
from rlax_plugin.sandbox.code_limits import Limits
from rlax_plugin.sandbox.layers import offered as sandbox_layers
from rlax_plugin.sandbox.sandbox import Ended, Sandbox, SandboxError

# What a trainer adds to a batch.
from rlax_plugin.signals.chain import SignalChain
from rlax_plugin.signals.chosen_signals import chosen_signals, needed_signals
from rlax_plugin.signals.learner import Learner, Optimizer
from rlax_plugin.signals.model_view import ModelView, Part
from rlax_plugin.signals.signal import ADVANTAGE_INPUTS, BatchSignal
from rlax_plugin.signals.state_files import SignalState
from rlax_plugin.signals.value_model import ValueLoss, ValueModel, ValueModelChoice

# Text from outside, and amounts in messages.
from rlax_plugin.text.amounts import in_bytes
from rlax_plugin.text.harmless import harmless, one_line, storable
from rlax_plugin.text.secrets import learn_secrets, names_secret
from rlax_plugin.tokens.chat import ChatTemplateError
from rlax_plugin.tokens.tokenizer import Tokenizer

# Records.
from rlax_plugin.types import (
    Attempt,
    Canary,
    Descent,
    Episode,
    HostPlace,
    Key,
    Prompt,
    Request,
    Sampled,
    SamplingParams,
    Score,
    ScoredGroup,
    SideSpec,
    TrainBatch,
    Trajectory,
    Turn,
    Unscored,
    WeightVersion,
)
from rlax_plugin.weights.fingerprint import fingerprint_numpy
from rlax_plugin.weights.verification import read_weights

if TYPE_CHECKING:
    from rlax_plugin.weights.device_fingerprint import fingerprint


def __getattr__(name: str) -> Any:
    if name == "fingerprint":  # the only one that needs JAX
        from rlax_plugin.weights.device_fingerprint import fingerprint

        return fingerprint
    raise AttributeError(f"module 'rlax_plugin.api' has no attribute {name!r}")

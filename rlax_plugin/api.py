"""Everything that a plug-in may import, beside ``rlax_plugin.testing``: the names imported here.

Both are kept stable: a name is renamed or removed only with a line in CHANGELOG.md. Importing this
module imports no JAX; docs/plugin_hooks.md says which hook takes and returns what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Errors, how samples end, and words for messages.
from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import (
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
from rlax_plugin.base.files.places import check_file_writable, check_readable, new_directory
from rlax_plugin.base.files.private import exposed, intrusion
from rlax_plugin.base.files.run_files import PREPARED, RunFiles
from rlax_plugin.base.processes.limited import LimitedFunction, OverLimitError
from rlax_plugin.base.processes.python import python_command
from rlax_plugin.base.processes.tree import kill_tree

# Text from outside, and amounts in messages.
from rlax_plugin.base.text.amounts import in_bytes
from rlax_plugin.base.text.harmless import harmless, one_line, storable
from rlax_plugin.base.text.secrets import learn_secrets, names_secret
from rlax_plugin.base.tokens.chat import ChatTemplateError, Demonstration
from rlax_plugin.base.tokens.tokenizer import Tokenizer

# Records.
from rlax_plugin.base.types import (
    ADAPTER,
    SAFETENSORS,
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
from rlax_plugin.config import Choice, NoOptions, PathText, RlaxSection, Rollouts, Section
from rlax_plugin.config.addresses import is_loopback
from rlax_plugin.config.base import INT32_MAX, NonNegativeInt, PositiveInt, Processes, Seconds
from rlax_plugin.config.loading import ResolvedConfig, load_section
from rlax_plugin.config.schedules import Scheduled, first_above, value_at
from rlax_plugin.config.user_directories import cache_home
from rlax_plugin.data.curation.intervals import beta_interval, mixed_probability
from rlax_plugin.data.prompts.checking import (
    completion_text,
    stable,
    stop_strings_of,
    whole_tokens,
    worth_decoding,
)
from rlax_plugin.data.prompts.config import DatasetConfig
from rlax_plugin.data.prompts.prompt_files import matching_files, opened
from rlax_plugin.data.prompts.row_columns import BrokenRow
from rlax_plugin.data.prompts.source import DatasetSource, example_prompt
from rlax_plugin.data.prompts.table import Domains, PromptTable
from rlax_plugin.data.prompts.text_source import TextRow, TextSource, model_tokenizer

# Hooks, and the interfaces of parts.
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.compiling import CompiledProgram, CompileTarget
from rlax_plugin.ports.curation import Filter, PassRates, Sampler, Selection
from rlax_plugin.ports.environment import Answer, Environment, EpisodeLimit, Outcome, Session
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
    Conversion,
    ConvertibleModel,
    Exported,
    FollowerPort,
    Publication,
    Trainer,
    TrainerPort,
)
from rlax_plugin.reward.functions.tools import CallError, FunctionTool
from rlax_plugin.reward.sandbox.code_limits import Limits
from rlax_plugin.reward.sandbox.layers import offered as sandbox_layers
from rlax_plugin.reward.sandbox.sandbox import Ended, Sandbox, SandboxError
from rlax_plugin.reward.sandbox.view import check_see_paths
from rlax_plugin.reward.sandbox.workspace import (
    COMMAND_LIMITS,
    CarryError,
    Workspace,
    check_work_paths,
    finds_program,
)
from rlax_plugin.rollout.batching.decode_engine import (
    MAX_STOP_IDS,
    DecodeSlots,
    Prefill,
    SlotOutput,
)
from rlax_plugin.rollout.batching.jobs import SIDE_CHANNELS, Job, rejection
from rlax_plugin.rollout.batching.scheduler import Scheduler
from rlax_plugin.rollout.batching.slots_engine import SlotsConfig, SlotsEngine
from rlax_plugin.rollout.batching.waited_for import AllWaitedFor, WaitedFor
from rlax_plugin.rollout.http.episode import Access, EpisodeDoor
from rlax_plugin.rollout.http.messages import AnswerForm, form_of
from rlax_plugin.rollout.http.outcomes import outcome_of, request_metrics
from rlax_plugin.rollout.http.policy import AssistantMessage, ToolCall
from rlax_plugin.rpc.transport.doors import client_channel
from rlax_plugin.run.metrics.tracking import (
    BackgroundTracker,
    Sink,
    TrackedRun,
    TrackerConfig,
    require,
)

# Objectives.
from rlax_plugin.training.objective.advantages import (
    Outcomes,
    completions,
    of_batch,
    per_group,
    reads_values,
)
from rlax_plugin.training.objective.arrays import ArraySpec
from rlax_plugin.training.objective.batches import ARRAYS, DEMONSTRATED, TEMPERATURE, device_arrays
from rlax_plugin.training.objective.combinations import corrects_sampler
from rlax_plugin.training.objective.inputs import TokenInputs, TokenOutputs
from rlax_plugin.training.objective.loss import (
    ObjectiveSlots,
    Ratio,
    check_weight_is_known,
    loss_weight,
    make_loss,
    own_terms,
    resolve,
)
from rlax_plugin.training.objective.presets import Preset, presets_from_yaml
from rlax_plugin.training.objective.ratios import kl_estimate, kl_token_rewards, ratio_of
from rlax_plugin.training.objective.slots import Aggregation
from rlax_plugin.training.objective.terms import LossTerm, Terms, scale_names, whole_update
from rlax_plugin.training.objective.update_sums import UPDATE_ARRAYS, update_sums

# What a trainer adds to a batch.
from rlax_plugin.training.signals.chain import SignalChain
from rlax_plugin.training.signals.chosen_signals import chosen_signals, needed_signals
from rlax_plugin.training.signals.learner import Learner, Optimizer
from rlax_plugin.training.signals.model_view import ModelView, Part
from rlax_plugin.training.signals.signal import ADVANTAGE_INPUTS, BatchSignal
from rlax_plugin.training.signals.state_files import SignalState
from rlax_plugin.training.signals.value_model import ValueLoss, ValueModel, ValueModelChoice
from rlax_plugin.weights.fingerprint import fingerprint_numpy
from rlax_plugin.weights.named import kept_weights
from rlax_plugin.weights.verification import check_canary, check_fingerprints, read_weights

if TYPE_CHECKING:
    from rlax_plugin.weights.device_fingerprint import fingerprint


def __getattr__(name: str) -> Any:
    if name == "fingerprint":  # the only one that needs JAX
        from rlax_plugin.weights.device_fingerprint import fingerprint

        return fingerprint
    raise AttributeError(f"module 'rlax_plugin.api' has no attribute {name!r}")

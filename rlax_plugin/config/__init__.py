"""The ``rlax:`` section of a MaxText config: every key with its meaning, unit and default.

*Parts* are chosen by ``name``; the options beside a name are checked by that part's own config
class (see ``build``). Importing this module imports neither JAX nor MaxText.
"""

from rlax_plugin.config.addresses import is_address
from rlax_plugin.config.base import (
    FUNCTION,
    INT32_MAX,
    YEAR_S,
    Choice,
    EnvironmentChoice,
    FunctionChoice,
    FunctionOptions,
    NonNegativeInt,
    NoOptions,
    PathText,
    PositiveInt,
    Processes,
    RewardChoice,
    Seconds,
    Section,
    SelectionChoice,
    default_parts,
    distinct_names,
    leaf_fields,
    plain_name,
)
from rlax_plugin.config.environments import OwnEnvironment, OwnObjective
from rlax_plugin.config.evaluation import Evaluation, EvaluationSet
from rlax_plugin.config.objective import (
    KL,
    SLOTS,
    AdaptiveKL,
    Algorithm,
    Objective,
    Overlong,
    Reference,
)
from rlax_plugin.config.rollouts import (
    Batches,
    Curation,
    Episodes,
    Guard,
    Prior,
    Rollouts,
    Stage,
    Staleness,
)
from rlax_plugin.config.schedules import (
    Schedule,
    Scheduled,
    first_above,
    highest,
    last_of,
    lowest,
    schedules_in,
    value_at,
)
from rlax_plugin.config.section import (
    SINGLE_TURN,
    Assume,
    Deadlines,
    LoggedSamples,
    Network,
    Retention,
    RlaxSection,
)
from rlax_plugin.config.weights import Weights

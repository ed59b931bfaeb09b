"""The records that travel between stages, one per boundary.

A group is one prompt, answered n times: each answer is an *episode* of one or more *trajectories*,
each of which is one sequence to train on. A trajectory is made of *turns*: the given tokens (the
prompt, the result of a tool), which never train, and the tokens that the policy sampled after them,
all of which train. Most episodes are one trajectory of one turn.

Tokens are int32. ``logprobs[t]`` and ``versions[t]`` belong to ``tokens[t]``, everywhere. Training
steps count from 1, weight versions from 0: the update of step ``s`` produces version ``s``, and
version 0 is the one that training started from.
"""

from __future__ import annotations

from rlax_plugin.base.types.episodes import (
    Episode,
    Judged,
    Rejected,
    Score,
    ScoredGroup,
    TrainBatch,
    Trajectory,
    Turn,
    Unscored,
    group_of,
)
from rlax_plugin.base.types.hosts import HostPlace
from rlax_plugin.base.types.sampled import (
    EMPTY,
    NO_VERSION,
    Attempt,
    Finish,
    Key,
    Prompt,
    Purpose,
    Request,
    Sampled,
    SamplingParams,
    SideSpec,
    staleness_of,
)
from rlax_plugin.base.types.weights import (
    ADAPTER,
    BASE,
    LONGEST_NAME,
    MOST_PARTS,
    NATIVE,
    SAFETENSORS,
    Canary,
    Descent,
    MemoryCopy,
    TensorSpec,
    VersionPart,
    WeightVersion,
)

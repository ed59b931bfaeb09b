"""More plug-ins that each break one promise, in answers that only some questions bring out."""

from __future__ import annotations

from broken_plugins import Broken, source_of

_SOURCE = """
import hashlib

import numpy as np

from rlax_plugin.api import ConfigError, Prompt, PromptSource


class Source(PromptSource):
    stop_ids = (1,)

    def prompts(self, split):
        if split not in ("train", "validation", "test"):
            raise ConfigError("split", split, "there is none")
        texts = [f"{split}{i}" for i in range(3)]
        return [self.prompt(text) for text in texts] + self.more(split)

    def prompt(self, text, reference="7"):
        name = hashlib.sha256(text.encode()).hexdigest()
        return Prompt(name, np.array(list(text.encode()), np.int32), text, reference)

    def more(self, split):
        return []

    def decode(self, tokens):
        return "".join(chr(t) for t in tokens if t > 1)

%s

def build(context):
    return Source()
"""


def _source(method: str, *told: str) -> Broken:
    return source_of("prompt_source", _SOURCE % method, *told)


def _filter(condition: str, *told: str) -> Broken:
    """A filter that answers True where the condition holds, and None elsewhere."""
    part = f"""
        class Filter:
            def reject(self, group):
                rewards = group.rewards[~np.isnan(group.rewards)]
                return True if {condition} else None

        def build(context):
            return Filter()
        """
    return source_of(
        "filter", part.replace("class Filter", "import numpy as np\n\n        class Filter"), *told
    )


_NEVER_A_BOOL = ("it returned True", "never a bool")

_TRACKER = """
class Tracker:
    def __init__(self, path):
        self.last = %(last)s
        self.file = path.open("%(mode)s", buffering=1)

    def log(self, step, metrics):
        %(first)s
        self.file.writelines(f"{step},{name},{value}\\n" for name, value in metrics.items())

    def close(self):
        self.file.close()


def build(context):
    return Tracker(context.run_dir / "log.csv")
"""


def _tracker(mode: str, *told: str, last: str = "0", first: str = "pass") -> Broken:
    return source_of("tracker", _TRACKER % {"mode": mode, "last": last, "first": first}, *told)


ANSWERS: dict[str, Broken] = {
    "filter_true_of_truncated_samples": _filter(
        "any(episode.truncated for episode in group.episodes)",
        "for a truncated sample it returned True",
        *_NEVER_A_BOOL,
    ),
    "filter_true_of_long_groups": _filter(
        "max(episode.tokens for episode in group.episodes) > 200", *_NEVER_A_BOOL
    ),
    "filter_true_of_easy_prompts": _filter("(group.pass_rate_before or 0) > 0.9", *_NEVER_A_BOOL),
    "filter_true_of_hard_prompts": _filter(
        "group.pass_rate_before is not None and group.pass_rate_before < 0.05", *_NEVER_A_BOOL
    ),
    "filter_true_of_many_samples": _filter("len(group.episodes) > 16", *_NEVER_A_BOOL),
    "filter_true_of_high_rewards": _filter("rewards.size and rewards.mean() > 20", *_NEVER_A_BOOL),
    "filter_true_of_a_narrow_band": _filter(
        "rewards.size > 3 and 0.45 < rewards.mean() < 0.55", *_NEVER_A_BOOL
    ),
    "filter_true_of_several_versions": _filter(
        "group.oldest_version < group.newest_version", *_NEVER_A_BOOL
    ),
    "filter_true_of_another_attempt": _filter("group.attempt > 1", *_NEVER_A_BOOL),
    "tracker_that_appends_blindly": _tracker(
        "a",
        "a run that is continued after a kill logs some steps again: they are there once",
        "log.csv holds check/zqxjkvbwfy 2 times, and held it 1 before",
        "leave out what the file has of a step",
    ),
    "tracker_that_begins_anew": _tracker(
        "w", "what an earlier process logged is gone", "open what is there"
    ),
    "tracker_that_opens_once": _tracker("x", "it raised FileExistsError"),
    "tracker_that_rejects_a_step_twice": _tracker(
        "a",
        "takes further metrics of the last step",
        "it raised AssertionError: 29 again",
        first="assert step > self.last, f'{step} again'; self.last = step",
    ),
    "tracker_that_drops_a_step_twice": _tracker(
        "a",
        "the first metrics of a step are on disk, the further ones are not",
        first="metrics, self.last = ({} if step == self.last else metrics), step",
    ),
    "source_that_encodes_floats": _source(
        "    def encode(self, text):\n        return [float(t) for t in text.encode()]",
        "encode gives the tokens of a prompt's text",
        "'train0' gives 116.0 (float) among its tokens",
        "a list of whole numbers",
    ),
    "source_that_encodes_a_float_array": _source(
        "    def encode(self, text):\n"
        "        return np.frombuffer(text.encode(), np.uint8).astype(np.float32)",
        "'train0' gives",
        "a list of whole numbers",
    ),
    "source_with_one_id_for_two_prompts": _source(
        "    def more(self, split):\n        return [self.prompt(f'{split}0', reference='8')]",
        "in split 'train' two different prompts share the id",
        "(other references)",
        "make the id a hash of the whole prompt",
    ),
}

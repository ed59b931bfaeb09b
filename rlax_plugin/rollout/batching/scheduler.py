"""Continuous batching: assigns samples to slots. No JAX, no threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlax_plugin.base.tokens.stopping import Decode, StopFinder
from rlax_plugin.base.types import Finish, Sampled
from rlax_plugin.rollout.batching.decode_engine import DecodeSlots, Prefill, SlotOutput
from rlax_plugin.rollout.batching.jobs import Job


@dataclass(frozen=True, slots=True)
class _Running:
    job: Job
    index: int
    version: int
    began: int  # decode steps of the engine when it was admitted
    finder: StopFinder | None  # where there are stop strings

    def so_far(self, generated: SlotOutput) -> Sampled:
        return self.job.extended(self.index, generated, self.version, None)

    def stop_place(self, generated: SlotOutput) -> int | None:
        """Returns the number of tokens up to a stop string; None if there is none."""
        if self.finder is None:
            return None
        looked_at = max(0, self.finder.seen - len(self.job.samples[self.index].tokens))
        found = self.finder.find(generated.tokens[looked_at:])
        return None if found is None else looked_at + found

    def end(self, generated: SlotOutput, place: int | None) -> None:
        """Completes the sample; a stop string ends it after ``place`` tokens."""
        stopped = place is not None or (
            int(generated.tokens[-1]) in self.job.request.sampling.stop_ids
        )
        if place is not None:
            generated = _first(generated, place)
        finish: Finish = "stop" if stopped else "length"
        self.job.samples[self.index] = self.job.extended(
            self.index, generated, self.version, finish
        )


def _first(generated: SlotOutput, count: int) -> SlotOutput:
    return replace(
        generated,
        tokens=generated.tokens[:count],
        logprobs=generated.logprobs[:count],
        truncated_logprobs=generated.truncated_logprobs[:count],
    )


def _no_text(tokens: np.ndarray) -> str:
    raise NotImplementedError("this scheduler was made without decode, and finds no stop strings")


class Scheduler:
    """Fills free slots with waiting samples, oldest group first, and collects those that end.

    A turn whose context a free slot keeps may overtake older groups that wait: it gets that slot.

    Args:
      slots: the decode engine.
      arrival_steps: decode steps between looks for arrivals while slots are free.
      linger_steps: steps a freed slot may wait for others, so that one prefill fills several.
      longest_call: decode steps of one call at most; None: until a slot frees.
      longest_client_call: the same while a group is generated that does not train: its client
        may give up at any time, and its slots are to be free soon.
      decode: tokens to text, to find stop strings.
      stop_string_steps: decode steps between looks for stop strings, where samples have some;
        tokens generated behind a stop string are dropped.
      deterministic: a training group is generated alone, from a fresh decode state, sample i in
        slot i: its samples then depend on weights and seeds only, to the last bit.
    """

    def __init__(
        self,
        slots: DecodeSlots,
        *,
        arrival_steps: int,
        linger_steps: int,
        longest_call: int | None = None,
        longest_client_call: int | None = None,
        decode: Decode = _no_text,
        stop_string_steps: int = 8,
        deterministic: bool = False,
    ):
        self._slots = slots
        self._arrival_steps, self._linger_steps = arrival_steps, linger_steps
        self._longest_call = longest_call or slots.max_new_tokens
        self._longest_client_call = longest_client_call or self._longest_call
        self._decode, self._stop_string_steps = decode, stop_string_steps
        self._deterministic = deterministic
        self._running: dict[int, _Running] = {}  # by slot, in the order of admission
        self._watched: set[int] = set()  # slots whose samples have stop strings

    @property
    def active(self) -> int:
        return len(self._running)

    def jobs(self) -> list[Job]:
        """Groups with at least one sample in a slot, in the order of admission."""
        return list(dict.fromkeys(running.job for running in self._running.values()))

    def figures(self) -> dict[Job, int]:
        """Returns the tokens so far of each group in slots, counted by decode steps. Any thread."""
        steps = self._slots.steps_total
        found: dict[Job, int] = {}
        for running in list(self._running.values()):  # copied at once: others may change it
            known = found.get(running.job)
            if known is None:
                known = sum(len(s.tokens) for s in running.job.samples)
            found[running.job] = known + steps - running.began
        return found

    def in_slots(self) -> dict[Job, dict[int, tuple[int, int]]]:
        """Returns group -> index of a sample in a slot -> its version, its tokens there.

        The tokens are counted by decode steps. Any thread.
        """
        steps = self._slots.steps_total
        found: dict[Job, dict[int, tuple[int, int]]] = {}
        for running in list(self._running.values()):
            samples = found.setdefault(running.job, {})
            samples[running.index] = running.version, steps - running.began
        return found

    def plan(self, waiting: Iterable[Job], version: int) -> list[Prefill]:
        """Assigns free slots to waiting samples that may be generated with ``version``.

        A group that does not fit is admitted in parts, its prompt prefilled once per part. The
        next turn of an episode gets the slot that keeps its context.
        """
        jobs, prefills = self._admissible(waiting, version), []
        kept = self._kept_slots(jobs)
        free = [slot for slot in self._slots.free_slots if slot not in kept.values()]
        for job in jobs:
            if (own := kept.get(job)) is not None:
                taken = [own]
            else:
                count = min(len(free), len(job.waiting))
                taken, free = free[:count], free[count:]
            indices, more = job.admit(taken)
            for slot, index in zip(taken, indices, strict=True):
                finder = self._finder(job, index)
                if finder is not None:
                    self._watched.add(slot)
                steps = self._slots.steps_total
                self._running[slot] = _Running(job, index, version, steps, finder)
            prefills += more
        return prefills

    def forget_contexts(self) -> None:
        """Makes the slots forget the contexts that they keep, because the weights change."""
        self._slots.forget_contexts()

    def _kept_slots(self, jobs: Iterable[Job]) -> dict[Job, int]:
        """Returns the slots that keep the contexts of groups, where one sample waits."""
        found: dict[Job, int] = {}
        for job in jobs:
            if len(job.waiting) == 1:
                slot = self._slots.kept_for(job.request.context)
                if slot is not None and slot not in found.values():
                    found[job] = slot
        return found

    def advance(self, weights: Mapping[str, Any], more_waits: bool) -> list[Job]:
        """Decodes for a while and returns the groups that are complete now.

        With ``more_waits``, or without a free slot, it decodes until a slot frees; otherwise for a
        few steps, so that arrivals get in quickly.
        """
        done = self._decoded(weights, more_waits)
        return done + self._look() if self._watched else done

    def _decoded(self, weights: Mapping[str, Any], more_waits: bool) -> list[Job]:
        slots = self._slots
        if more_waits or not slots.free_slots:
            trains = all(running.job.trains for running in self._running.values())
            longest = self._longest_call if trains else self._longest_client_call
            ended = slots.decode(weights, self._at_most(longest), True)
            done = self._finish(ended)
            if ended and more_waits and self.active and self._linger_steps:
                done += self._finish(slots.decode(weights, self._linger_steps, False))
            return done
        return self._finish(slots.decode(weights, self._at_most(self._arrival_steps), True))

    def _at_most(self, steps: int) -> int:
        return min(steps, self._stop_string_steps) if self._watched else steps

    def _look(self) -> list[Job]:
        """Ends the samples that have reached a stop string; returns the groups completed by it."""
        watched = [slot for slot in self._running if slot in self._watched]
        jobs, ended = [], []
        for generated in self._slots.read(watched) if watched else []:
            running = self._running[generated.slot]
            if (place := running.stop_place(generated)) is not None:
                running.end(generated, place)
                ended.append(generated.slot)
                jobs += [running.job] if running.job.complete else []
        self._release(ended)
        return jobs

    def _finder(self, job: Job, index: int) -> StopFinder | None:
        if not (stop_strings := job.request.sampling.stop_strings):
            return None
        finder, tokens = StopFinder(stop_strings, self._decode), job.samples[index].tokens
        if len(tokens):
            finder.find(tokens)
        return finder

    def interrupt(self, keep_tokens: bool) -> list[Job]:
        """Frees all slots; their samples wait again, behind their tokens or at the prompt.

        Returns:
          The groups they belong to, in the order of admission.
        """
        self.forget_contexts()  # weights change next: nothing is to be kept of what ends here
        jobs, interrupted = self.jobs(), list(self._running.items())
        slots = [slot for slot, _ in interrupted]
        generated = self._slots.read(slots) if keep_tokens else [None] * len(slots)
        for (_, running), tokens in zip(interrupted, generated, strict=True):
            running.job.interrupt(running.index, running.so_far(tokens) if tokens else None)
        self._release(slots)
        return jobs

    def progress(self, waiting: Iterable[Job]) -> list[tuple[Job, list[Sampled]]]:
        """Returns all begun groups with their samples so far; reads the device once.

        Args:
          waiting: groups with samples that wait for a slot.
        """
        return list(self._so_far([*self.jobs(), *(job for job in waiting if job.started)]).items())

    def stream(self) -> None:
        """Hands the samples so far to the groups in slots that have a ``Job.stream``."""
        wanted = {job: job.stream for job in self.jobs() if job.stream is not None}
        if wanted:
            for job, samples in self._so_far(wanted).items():
                wanted[job](samples)

    def _so_far(self, jobs: Iterable[Job]) -> dict[Job, list[Sampled]]:
        """Returns groups with their samples so far; reads the device once."""
        samples = {job: list(job.samples) for job in jobs}
        slots = [slot for slot, running in self._running.items() if running.job in samples]
        for generated in self._slots.read(slots):
            running = self._running[generated.slot]
            samples[running.job][running.index] = running.so_far(generated)
        return samples

    def drop(self, jobs: Iterable[Job]) -> None:
        """Frees the slots of groups whose result is not used any more."""
        gone = set(jobs)
        self._release([slot for slot, running in self._running.items() if running.job in gone])

    def _admissible(self, waiting: Iterable[Job], version: int) -> list[Job]:
        ready = [job for job in waiting if job.min_version <= version]
        if not self._deterministic:
            return ready
        if any(job.trains for job in self.jobs()):
            return []
        # Others batch as usual, but none overtakes a training group: that would make it wait on.
        others = list(itertools.takewhile(lambda job: not job.trains, ready))
        return others if others or self.active else ready[:1]

    def _release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self._running[slot]
        self._watched.difference_update(slots)
        if slots:
            self._slots.release(slots)

    def _finish(self, ended: list[SlotOutput]) -> list[Job]:
        jobs = []
        for generated in ended:
            running = self._running.pop(generated.slot)
            self._watched.discard(generated.slot)
            running.end(generated, running.stop_place(generated))
            if running.job.complete:
                jobs.append(running.job)
        return jobs

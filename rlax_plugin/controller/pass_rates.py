"""The pass-rate table: how often each prompt was answered well, forgetting with age."""

from __future__ import annotations

from collections.abc import Mapping


class PassRateTable:
    """Decayed pass counts per prompt id. Written only by ``observe``; samplers read ``get``.

    Pass rates age with the policy, so each new group of a prompt shrinks what was known before by
    ``0.5 ** (1 / half_life)``.

    Args:
      half_life: groups of one prompt after which an old outcome counts half.
    """

    def __init__(self, half_life: float):
        self._keep = 0.5 ** (1.0 / half_life)
        self._counts: dict[str, tuple[float, float]] = {}

    def observe(self, prompt_id: str, passed: int, scored: int) -> None:
        """Adds one group's outcome: ``passed`` of ``scored`` samples. Errored ones say nothing."""
        if scored:
            good, seen = self._counts.get(prompt_id, (0.0, 0.0))
            self._counts[prompt_id] = (good * self._keep + passed, seen * self._keep + scored)

    def get(self, prompt_id: str) -> tuple[float, float] | None:
        """(pass rate in [0, 1], decayed number of samples), or None if never measured."""
        known = self._counts.get(prompt_id)
        return None if known is None else (known[0] / known[1], known[1])

    def __len__(self) -> int:
        return len(self._counts)

    def histogram(self, bins: int = 10) -> list[int]:
        """How many measured prompts lie in each of ``bins`` equal ranges of pass rate."""
        counts = [0] * bins
        for good, seen in self._counts.values():
            counts[min(bins - 1, int(bins * good / seen))] += 1
        return counts

    def state(self) -> dict[str, list[float]]:
        return {prompt_id: [good, seen] for prompt_id, (good, seen) in self._counts.items()}

    def restore(self, state: Mapping[str, list[float]]) -> None:
        self._counts = {prompt_id: (good, seen) for prompt_id, (good, seen) in state.items()}

"""What is exported for Prometheus, read back by its own parser."""

import math
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rlax_plugin.base.errors import ConfigError, WorkerError
from rlax_plugin.config.network import Place
from rlax_plugin.rollout.worker.worker_metrics import WorkerMetrics
from rlax_plugin.rpc.transport.prometheus import Exporter
from rlax_plugin.run.metrics.exporter import RunMetrics


def scraped(url: str) -> dict[tuple[str, str], float]:
    """(name, worker or "") -> value."""
    with urllib.request.urlopen(url, timeout=60) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {(s.name, s.labels.get("worker", "")): s.value for f in families for s in f.samples}


@contextmanager
def exported(metrics: RunMetrics | WorkerMetrics) -> Iterator[str]:
    exporter = Exporter(Place(), 0, "some.port", metrics.registry)
    try:
        yield exporter.url
    finally:
        exporter.close()


def test_a_run_exports_its_newest_step_and_its_fleet() -> None:
    workers = {"w0": {"active": 3.0, "tokens_total": 70.0}, "w1": {"active": 1.0}}
    run = RunMetrics(counts=lambda: {"groups_reissued_total": 2}, workers=lambda: workers)
    with exported(run) as url:
        assert scraped(url)["rlax_step", ""] == 0
        run.step(1, {"reward/mean": 0.25, "old/one": 1.0})
        run.step(2, {"reward/mean": 0.5, "logprob_gap/p95": math.nan, "time/train-s": 3.0})
        found = scraped(url)
        del workers["w0"]  # lost
        assert ("rlax_worker_active", "w0") not in scraped(url)
    assert math.isnan(found.pop(("rlax_logprob_gap_p95", "")))
    assert found == {
        ("rlax_step", ""): 2,
        ("rlax_reward_mean", ""): 0.5,
        ("rlax_time_train_s", ""): 3,
        ("rlax_groups_reissued_total", ""): 2,
        ("rlax_worker_active", "w0"): 3,
        ("rlax_worker_active", "w1"): 1,
        ("rlax_worker_tokens_total", "w0"): 70,
    }


def test_an_evaluation_is_seen_until_the_next_one() -> None:
    run = RunMetrics(counts=dict, workers=dict)
    run.step(5, {"reward/mean": 0.1, "evaluation/version": 4.0, "evaluation_hard/pass_at_1": 0.5})
    run.step(6, {"reward/mean": 0.2})
    run.step(6, {"evaluation/version": 5.0})  # it ended after the last step
    with exported(run) as url:
        assert scraped(url) == {
            ("rlax_step", ""): 6,
            ("rlax_reward_mean", ""): 0.2,
            ("rlax_evaluation_version", ""): 5,
            ("rlax_evaluation_hard_pass_at_1", ""): 0.5,
        }


def test_counters_are_typed_as_counters() -> None:
    run = RunMetrics(counts=lambda: {"a_total": 1, "b": 2}, workers=dict)
    text = generate_latest(run.registry).decode()
    assert "# TYPE rlax_a_total counter" in text and "# TYPE rlax_b gauge" in text


def test_a_worker_says_whether_its_engine_lives_and_shares_nothing() -> None:
    def figures() -> dict[str, float]:
        if died:
            raise WorkerError("out of memory")
        return {"slots": 4.0}

    died = False
    with exported(WorkerMetrics("w", figures)) as url, exported(WorkerMetrics("v", dict)) as other:
        assert scraped(url) == {("rlax_worker_up", "w"): 1, ("rlax_worker_slots", "w"): 4}
        died = True
        assert scraped(url) == {("rlax_worker_up", "w"): 0}
        assert scraped(other) == {("rlax_worker_up", "v"): 1}
    with pytest.raises(urllib.error.URLError):
        scraped(url)


def test_a_port_that_is_taken_is_an_error_of_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"network.prometheus_port = {port}: .*0 means any"):
            Exporter(Place(), port, "rlax.network.prometheus_port", CollectorRegistry())


@pytest.mark.parametrize("key", ["--prometheus-port", "rlax.network.prometheus_port"])
def test_a_page_beyond_loopback_wants_a_token(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} = 0: cannot be used on 0.0.0.0 without a token"):
        Exporter(Place("0.0.0.0", "worker.example.org"), 0, key, CollectorRegistry())
    place = Place("0.0.0.0", "worker.example.org")
    exporter = Exporter(place, 0, key, CollectorRegistry(), token="0123456789abcdef")
    assert exporter.url.startswith("http://worker.example.org:")
    exporter.close()

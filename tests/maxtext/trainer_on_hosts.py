"""MaxText's trainer over hosts on given batches: all calls of the hosts, no controller, no workers.

As a program it is one host: HOST HOSTS DEVICES PORT LAST_STEP DIRECTORY. Host 0 writes
figures.json. A run that has a checkpoint goes on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import equivalent_runs as given
import jax
import numpy as np
from rlax_maxtext.options import TrainerOptions
from rlax_maxtext.trainer import MaxTextTrainer
from waiting import wait_until

from maxtext_overrides.config import loading
from maxtext_overrides.trainer import distributed, train_loop
from rlax_plugin.base.concurrency.loop_thread import LoopThread
from rlax_plugin.base.types import HostPlace, TrainBatch
from rlax_plugin.build import registry_for
from rlax_plugin.config import Deadlines
from rlax_plugin.config.loading import resolve
from rlax_plugin.ports.orders import Order
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.ports.training import Decision, NewWeights, TrainerPort
from rlax_plugin.rollout.fleet.package_versions import PackageVersions, own_versions
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.run_secrets import run_secrets, token_file
from rlax_plugin.rpc.security.secret import read_secret
from rlax_plugin.rpc.transport.doors import Door, listen
from rlax_plugin.run.hosts.following import START, FollowedPort, HostZero
from rlax_plugin.run.hosts.leading import HostsService, Leader
from rlax_plugin.training.objective import advantages, batches
from rlax_plugin.weights.publisher import fingerprints

TINY = str(Path(__file__).with_name("tiny.yml"))
STEPS, DEVICES = 5, 8
ROWS = given.GROUPS * len(given.LENGTHS) // 2
NAME = "packed"


def overrides(devices: int, directory: Path) -> list[str]:
    return [
        "rlax.objective={preset: grpo, kl: {coefficient: 0.2, placement: loss}}",
        f"base_output_directory={directory}",
        f"run_name={NAME}",
        f"steps={STEPS}",
        f"per_device_batch_size={ROWS // devices}",
        f"rlax.batches={{rows: {ROWS}, sequences_per_row: 4}}",
        f"rlax.rollouts={{group_size: {len(given.LENGTHS)}, groups_per_step: {given.GROUPS}, "
        "max_prompt_tokens: 6, max_new_tokens: 10}",
        "rlax.prompt_source={name: synthetic, prompt_tokens: 6, vocab_size: 64, count: 8}",
        "enable_checkpointing=true",
        "init_weights_seed=3",
    ]


class GivenBatches(TrainerPort):
    """Batches of random samples, the same in every process; figures of every step."""

    canary_tokens = np.arange(5, dtype=np.int32)

    def __init__(self, section, algorithm, last_step: int, leader: Leader | None):
        self._section, self._algorithm = section, algorithm
        self._last_step, self._leader = last_step, leader
        self.found: dict[str, list] = {"loss": [], "grad_norm": [], "step": [], "digest": []}
        if leader is not None:
            self.followers = leader
            leader.tell_all(Order(START, arrays={"canary": self.canary_tokens}))

    def next_batch(self, step: int):
        groups = tuple(given.groups_of(step))
        slot = given.slots_of({"preset": "grpo"}).advantages
        batch = TrainBatch(step, groups, advantages.of_groups(slot, groups))
        return batches.arrays_of(self._section, self._algorithm, batch)

    def take(self, weights: NewWeights) -> None:
        prints = fingerprints(weights.parts["base"])
        self.found["digest"].append(sum(int(value) for value in prints.values()) % 2**32)
        self.found["canary"] = np.asarray(weights.canary.logprobs).tolist()

    def step_done(self, step: int, metrics) -> None:
        self.found["step"].append(step)
        self.found["loss"].append(float(metrics["learning/loss"]))
        self.found["grad_norm"].append(float(metrics["learning/grad_norm"]))

    def before_checkpoint(self, step: int) -> None:
        pass

    def progress(self, phase, done, of, note="") -> None:
        pass

    def decide(self, step: int) -> Decision:
        decision = Decision(*(step == self._last_step,) * 2)
        if self._leader is not None:
            self._leader.decided(step, decision)
        return decision


def main(host: int, hosts: int, devices: int, port: int, last_step: int, directory: Path) -> None:
    place = HostPlace(host, hosts, f"127.0.0.1:{port}" if hosts > 1 else "")
    thread, leader, followed = LoopThread(), None, None
    deadlines = Deadlines(host_s=60)
    if hosts > 1 and host == 0:
        leader = led(place, thread, directory)
    elif hosts > 1:
        followed = joined(place, thread, directory, deadlines)
    stock_initialize, leave = loading.initialize, distributed.leave
    distributed.leave = lambda: None  # until the figures are written

    def initialize(*args, **kwargs):
        config = stock_initialize(*args, **kwargs)
        # MaxText's default generator yields other weights on another mesh.
        jax.config.update("jax_default_prng_impl", "threefry2x32")
        return config

    loading.initialize = initialize
    if devices == 1:
        train_loop.folding.install = lambda allow: None
    config = resolve(TINY, overrides(devices, directory))
    section, registry = config.section, registry_for(config.section)
    context = BuildContext(
        directory,
        section.seed,
        section,
        config,
        run_url=str(directory / NAME),
        part=lambda kind, choice, key: registry.part(kind, choice, key, context),
        hosts=place,
    )
    trainer = MaxTextTrainer(TrainerOptions(), context)
    if followed is not None:
        trainer.follow(FollowedPort(followed, None))
    else:
        given_batches = GivenBatches(section, registry.slots(context).algorithm, last_step, leader)
        trainer.run(given_batches)
        (directory / "figures.json").write_text(json.dumps(given_batches.found))
    leave()
    if leader is not None:
        thread.run_last(led.server.stop(None), 60)
    thread.close()


def led(place: HostPlace, thread: LoopThread, directory: Path) -> Leader:
    secrets = run_secrets(directory)
    callers = secrets.callers()

    async def served():
        leader = Leader(place, "tests", PackageVersions(own_versions(())), thread.loop, print)
        server, address = listen("127.0.0.1", 0, Door(callers, secrets.identity), "port")
        rpc.add_HostsServicer_to_server(HostsService(leader), server)
        await server.start()
        return leader, address, server

    callers.admit(secrets.share("host"), "host")
    leader, address, led.server = thread.run(served(), 60)
    (directory / "address").write_text(address)
    return leader


def joined(place: HostPlace, thread: LoopThread, directory: Path, deadlines: Deadlines) -> HostZero:
    written = directory / "address"
    address = wait_until(
        lambda: written.exists() and written.read_text(), "the address of host 0", limit_s=300
    )
    secret = read_secret(token_file(directory, "host"), "token")
    zero = HostZero(place, address, secret, deadlines, thread, 1 << 24)
    zero.join("tests", ())
    return zero


if __name__ == "__main__":
    *numbers, directory = sys.argv[1:]
    main(*map(int, numbers), Path(directory))

"""Commands for clusters: launch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlax_plugin.cli.common import CLUSTERS, Config, Overrides, command, exit_status

_Resources = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=AMOUNT",
        help="resource of this pod, such as cpu=8, memory=64Gi or google.com/tpu=4; may be given "
        "several times. Default: cpu from rlax.reward_processes (workers: 2) and memory=16Gi",
    ),
]
_Nodes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL=VALUE",
        help="label that the node must have, such as "
        "cloud.google.com/gke-tpu-accelerator=tpu-v5-lite-podslice; may be given several times",
    ),
]


@command(
    CLUSTERS,
    "rlax launch configs/demo.yml --render manifests --image europe-docker.pkg.dev/me/rlax:1 "
    "--weights-claim weights",
)
def launch(
    config: Config,
    overrides: Overrides = None,
    *,
    render: Annotated[
        Path, typer.Option(metavar="DIR", help="directory to write; existing files are replaced")
    ],
    image: Annotated[
        str, typer.Option(help="image with this project, such as one built from the Dockerfile")
    ],
    name: Annotated[
        str | None,
        typer.Option(help="prefix of the names of all objects; default: made of run_name"),
    ] = None,
    namespace: Annotated[
        str, typer.Option(help="namespace; default: that of kubectl's context")
    ] = "",
    workers: Annotated[int, typer.Option(min=0, help="number of worker pods")] = 2,
    port: Annotated[int, typer.Option(min=1, max=65535, help="port of the controller")] = 4711,
    trainer_resource: _Resources = None,
    worker_resource: _Resources = None,
    trainer_node: _Nodes = None,
    worker_node: _Nodes = None,
    spot: Annotated[bool, typer.Option("--spot", help="run workers on spot nodes of GKE")] = False,
    storage: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="size of the trainer's volume: state, caches and, unless base_output_directory is "
            "a URL, the run's directory",
        ),
    ] = "100Gi",
    storage_class: Annotated[
        str, typer.Option(help="class of the trainer's volume; default: the cluster's")
    ] = "",
    weights_claim: Annotated[
        str,
        typer.Option(
            metavar="CLAIM",
            help="PersistentVolumeClaim for the weights, which all pods can mount "
            "(ReadWriteMany). Not needed if rlax.weights.path or base_output_directory is a URL",
        ),
    ] = "",
    service_account: Annotated[
        str, typer.Option(help="service account of the pods, for access to buckets")
    ] = "",
    env_secret: Annotated[
        str,
        typer.Option(
            metavar="SECRET",
            help="Secret whose keys become environment variables of all pods, such as HF_TOKEN",
        ),
    ] = "",
    metrics_secret: Annotated[
        str,
        typer.Option(
            metavar="SECRET",
            help="Secret with the key token: pods serve /metrics to scrapes with this token, and "
            "workers get readiness probes; default: no metrics",
        ),
    ] = "",
    hosts: Annotated[
        int, typer.Option(min=1, max=4096, help="number of hosts of the trainer, one pod each")
    ] = 1,
    runs_claim: Annotated[
        str,
        typer.Option(
            metavar="CLAIM",
            help="with --hosts: PersistentVolumeClaim for the run's directory, which all hosts can "
            "mount (ReadWriteMany). Not needed if base_output_directory is a URL",
        ),
    ] = "",
    certs: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="with --hosts: directory of rlax certs DIR --name NAME-trainer, by which the "
            "hosts verify each other",
        ),
    ] = "",
) -> None:
    """Writes Kubernetes manifests for a run, and the commands that apply them.

    The trainer becomes a StatefulSet with one pod, which resumes after every restart, and the
    workers a Deployment. With --hosts N the trainer becomes a JobSet of N pods, which all start
    again when one is lost. The manifests contain no secrets: commands.sh has the kubectl commands
    that create Secrets from files, and all others, in their order. Nothing is sent to a cluster.

    The config is checked as rlax check --fast does it. Paths in it are those inside the image; a
    local base_output_directory is replaced by the trainer's volume, and a local rlax.weights.path
    by the volume of --weights-claim. The time that pods get to end follows from rlax.deadlines.
    """
    with exit_status():
        from rlax_plugin.build import registry_for
        from rlax_plugin.commands.kubernetes.options import Options, name_of_run, pairs
        from rlax_plugin.commands.kubernetes.render import render as write
        from rlax_plugin.config.loading import resolve

        resolved = resolve(config, overrides or ())
        registry_for(resolved.section).validate(resolved.section)
        options = Options(
            image=image,
            name=name_of_run(str(resolved.maxtext.get("run_name"))) if name is None else name,
            namespace=namespace,
            workers=workers,
            port=port,
            trainer_resources=pairs("--trainer-resource", trainer_resource or (), "quantities"),
            worker_resources=pairs("--worker-resource", worker_resource or (), "quantities"),
            trainer_nodes=pairs("--trainer-node", trainer_node or (), "labels"),
            worker_nodes=pairs("--worker-node", worker_node or (), "labels"),
            spot=spot,
            storage=storage,
            storage_class=storage_class,
            weights_claim=weights_claim,
            service_account=service_account,
            env_secret=env_secret,
            metrics_secret=metrics_secret,
            hosts=hosts,
            runs_claim=runs_claim,
            certs=certs,
        )
        rendered = write(resolved, options, render)
        for note in rendered.notes:
            typer.echo(f"note: {note}")
        typer.echo(f"wrote {', '.join(map(str, rendered.files))}\n")
        typer.echo(rendered.text, nl=False)

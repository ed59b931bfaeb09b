#!/bin/bash
# A run on SLURM: the first nodes of this job train, one process on each, and every other node has a
# worker. Before its time ends the run stops with a checkpoint, and the job goes back into the
# queue. docs/slurm.md. Edit the lines marked `# edit`, and submit it in a clone, with `rlax` on
# the PATH of all nodes:  sbatch configs/slurm/run.sh CONFIG [KEY=VALUE ...]
#SBATCH --job-name=demo
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=12:00:00
# batch_s + 2 weights_s + 2 close_s of rlax.deadlines, and 70 s: in this time the trainer ends its
# step, writes a checkpoint and closes its parts. Add the duration of a long train step. The signal
# is for the processes that srun starts; with B: it would be for this shell alone.
#SBATCH --signal=TERM@730
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -uo pipefail
umask 077

hosts=${HOSTS:-2}                        # edit: nodes that train
more=${MORE:-0}                          # edit: further workers, each a job of its own
shared=${SHARED:-$HOME/rlax}             # edit: a directory that all nodes see
state=${STATE:-/var/tmp/rlax-$(id -un)}  # edit: on a disk of each training node; not on NFS
port=${PORT:-4711}                       # edit: this one and the next are used on the first node

if [ "$hosts" -gt "$SLURM_NNODES" ]; then
  echo "HOSTS = $hosts: the job has $SLURM_NNODES nodes (--nodes)" >&2
  exit 2
fi
config=$1 name=$SLURM_JOB_NAME host=$(hostname)
shift
certs=$shared/$name-certs state=$state/$name
controller=$host:$port token=$certs/worker-token.json
trap : TERM # a signal to all of the job reaches this shell too, which has something left to do

end_workers() { scancel --user="$(id -un)" --name="$name-worker"; }
end_workers # of an earlier time, which SLURM may have killed

# Tokens and the authority stay as they are; the certificate is for the first node of this time.
rlax certs make "$certs" --name "$host" --tokens || exit
mkdir -p "$state" || exit
secrets=$(sha256sum < "$certs/secrets.json")
if [ "$secrets" != "$(cat "$state/copied" 2> /dev/null)" ]; then # this disk has none, or others
  cp "$certs"/{worker-token,host-token,secrets}.json "$state" || exit
  echo "$secrets" > "$state/copied"
fi

if [ "$more" -gt 0 ]; then
  sbatch --job-name="$name-worker" --array="1-$more" \
    configs/slurm/worker.sh "$controller" "$token" "$SLURM_JOB_ID" || exit
fi
if [ "$SLURM_NNODES" -gt "$hosts" ]; then
  srun --nodes=$((SLURM_NNODES - hosts)) --ntasks=$((SLURM_NNODES - hosts)) --relative="$hosts" \
    bash -c 'trap exit TERM
      until rlax serve --controller "$0" --token-file "$1"; do [ $? != 2 ] || exit; sleep 10; done
    ' "$controller" "$token" & # one that fails is started again
fi
train=(
  rlax train "$config" "run_name=$name" "base_output_directory=$shared"
  'rlax.launcher={name: static}' # the workers are SLURM's
  "rlax.state_dir=$state"
  rlax.network.host=0.0.0.0 "rlax.network.advertised_host=$host" "rlax.network.port=$port"
  "rlax.network.tls.certificate=$certs/server.pem" "rlax.network.tls.key=$certs/server-key.pem"
  "rlax.network.tls.ca=$certs/ca.pem" "$@"
)
# Each host has the number that SLURM gives its process. Host 0 notes its status: if it fails, JAX
# aborts the others, and srun returns the highest status.
rm -f "$state/status"
export STATUS_FILE=$state/status
export HOST_0=$host:$((port + 1)) CONTROLLER=$controller TOKEN=$certs/host-token.json
srun --nodes="$hosts" --ntasks="$hosts" --relative=0 bash -c '
  [ "$SLURM_NTASKS" = 1 ] ||
    set -- "$@" --hosts "$SLURM_NTASKS" --host "$SLURM_PROCID" --coordinator "$HOST_0"
  [ "$SLURM_PROCID" = 0 ] || set -- "$@" --controller "$CONTROLLER" --token-file "$TOKEN"
  [ "$SLURM_PROCID" = 0 ] || exec "$@"
  trap : TERM
  "$@"
  status=$?
  echo $status > "$STATUS_FILE"
  exit $status
' host "${train[@]}"
status=$?
of_host_0=$(cat "$state/status" 2> /dev/null)
case $of_host_0 in 1 | 2) status=$of_host_0 ;; esac
end_workers

# 0: complete, 1: failed, 2: wrong config, 130: stopped; above: killed, or another host was lost.
# A job that SLURM itself puts back, and one that was cancelled, is not RUNNING any more. One that
# ends within a minute would do so again, such as one whose --time leaves --signal nothing.
if [ "$status" -ge 130 ] && [ "$SECONDS" -ge 60 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ] &&
  [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"

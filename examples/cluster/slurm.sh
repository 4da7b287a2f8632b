#!/bin/bash
# A trainer on one node with a GPU, and 16 env-hosts of 8 cores wherever there is room, as two
# components of one job. Start it with: sbatch examples/cluster/slurm.sh
#SBATCH --job-name=sebulba
#SBATCH --time=24:00:00
#SBATCH --ntasks=1 --cpus-per-task=8 --mem=32G --gpus=1
#SBATCH hetjob
#SBATCH --ntasks=16 --cpus-per-task=8 --mem-per-cpu=512M
set -euo pipefail

run=${RUN:-$PWD/runs/breakout}
port=${PORT:-7777}
trainer=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_0" | head -n 1)

# All nodes read them here: a certificate of this trainer, and a token, for this job alone.
secrets=$PWD/.sebulba-$SLURM_JOB_ID
mkdir -p "$secrets"
chmod 700 "$secrets"
trap 'rm -rf "$secrets"' EXIT
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=sebulba \
    -addext "subjectAltName=DNS:$trainer" \
    -keyout "$secrets/tls.key" -out "$secrets/tls.crt"
(umask 077; openssl rand -hex 32 >"$secrets/token")

srun --het-group=1 --kill-on-bad-exit=0 sebulba env-host \
    --connect "$trainer:$port" --env Breakout-v5 --envs 64 --lanes 2 --patience-seconds 0 \
    --ca "$secrets/tls.crt" --token-file "$secrets/token" &

resume=()
if [ -e "$run/config.json" ]; then resume=(--resume); fi

# The one step that decides: env-hosts end with a run that is complete, and with the job otherwise.
srun --het-group=0 sebulba train vtrace-atari --env Breakout-v5 --out "$run" "${resume[@]}" \
    --actors-per-device 0 --remote-lanes 32 --min-lanes 16 --envs-per-actor 64 --batch-size 64 \
    --listen "0.0.0.0:$port" --tls-cert "$secrets/tls.crt" --tls-key "$secrets/tls.key" \
    --token-file "$secrets/token"

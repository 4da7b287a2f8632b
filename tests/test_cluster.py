"""The files of examples/cluster: both sides say the same, and our commands take it."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import tyro
import yaml
from paths import ROOT

from sebulba import algorithms, presets
from sebulba.cli import env_host, options, train

CLUSTER = ROOT / "examples" / "cluster"
# What their shells would put in the place of variables.
VARIABLES = {"${resume[@]}": "", "$resume": "", "$port": "7777", "$trainer": "trainer"}
VARIABLES |= {"$run": "/runs/breakout", "$secrets": "/secrets"}


def commands(script: str) -> dict[str, list[str]]:
    """The words of our two commands in a shell script, after their names."""
    for name, value in VARIABLES.items():
        script = script.replace(name, value)
    found = re.findall(r"sebulba (train|env-host) (.*)", script.replace("\\\n", " "))
    assert [name for name, _ in found] in (["train", "env-host"], ["env-host", "train"])
    return {name: [word for word in shlex.split(words) if word != "&"] for name, words in found}


def check_that_they_agree(script: str, num_hosts: int) -> tuple[train.Options, env_host.Options]:
    words = commands(script)
    preset, *rest = [word for word in words["train"] if word]
    trainer = train.parse(presets.get(preset), rest)
    default = env_host.Options(connect=tyro.MISSING, env=tyro.MISSING)
    host = options.parse(default, words["env-host"], "sebulba env-host", "")
    trainer.config.validate()
    assert algorithms.of(trainer.config).unrolls_per_turn(trainer.config) == 1
    assert (trainer.config.env, trainer.config.envs_per_actor) == (host.env, host.envs)
    assert trainer.config.atari_protocol == host.atari_protocol
    assert trainer.config.remote_lanes == num_hosts * host.lanes
    assert trainer.listen.min_lanes <= trainer.config.remote_lanes
    listen, connect = str(trainer.listen.listen), host.connect
    assert listen.rpartition(":")[2] == connect.rpartition(":")[2]
    assert trainer.listen.tls_cert == host.security.ca
    assert trainer.listen.token_file == host.security.token_file
    for given in (trainer.listen, host.security):
        assert not given.insecure and given.token_file is not None
    return trainer, host


def test_slurm() -> None:
    path = CLUSTER / "slurm.sh"
    subprocess.run(["bash", "-n", path], check=True)
    text = path.read_text()
    trainer, env_hosts = re.findall(r"^#SBATCH --ntasks=(\d+)", text, re.MULTILINE)
    assert trainer == "1"
    check_that_they_agree(text, int(env_hosts))


def test_kubernetes() -> None:
    parts = {part["kind"]: part for part in yaml.safe_load_all(read("kubernetes.yaml"))}
    assert set(parts) == {"Service", "Job", "Deployment"}
    pods = {kind: parts[kind]["spec"]["template"] for kind in ("Job", "Deployment")}
    scripts = [pod["spec"]["containers"][0]["args"][0] for pod in pods.values()]
    trainer, host = check_that_they_agree("".join(scripts), parts["Deployment"]["spec"]["replicas"])
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)

    name, _, port = host.connect.rpartition(":")
    service = parts["Service"]
    assert service["metadata"]["name"] == name
    assert [each["port"] for each in service["spec"]["ports"]] == [int(port)]
    selects(service["spec"]["selector"], pods["Job"])
    selects(parts["Deployment"]["spec"]["selector"]["matchLabels"], pods["Deployment"])
    assert parts["Job"]["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"

    for kind, pod in pods.items():
        (container,) = pod["spec"]["containers"]
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
        assert set(mounts) <= volumes, kind
        security = trainer.listen if kind == "Job" else host.security
        files = [
            value for value in dataclasses.asdict(security).values() if isinstance(value, Path)
        ]
        assert files and all(file.is_relative_to(mounts["secrets"]) for file in files)
    assert trainer.config.out is not None and trainer.config.out.is_relative_to("/runs")
    assert "tls.key" not in str(pods["Deployment"]), "the key is the trainer's alone"


def test_kubernetes_knows_every_field() -> None:
    newest = kubernetes_validate.latest_version()
    for part in yaml.safe_load_all(read("kubernetes.yaml")):
        kubernetes_validate.validate(part, newest, strict=True)
        part["spec"]["replica"] = 1
        with pytest.raises(kubernetes_validate.ValidationError, match="'replica' was unexpected"):
            kubernetes_validate.validate(part, newest, strict=True)


def read(name: str) -> str:
    return (CLUSTER / name).read_text()


def selects(selector: dict[str, str], pod: dict[str, Any]) -> None:
    assert selector and selector.items() <= pod["metadata"]["labels"].items()

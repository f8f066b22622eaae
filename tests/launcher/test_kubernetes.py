"""The files in launch/kubernetes: what Kubernetes' published schemas allow, and what ranks find."""

import copy
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ooodist.engines.detect import choose
from ooodist.engines.kinds.collective import cluster

FOLDER = Path(__file__).parents[2] / "launch/kubernetes"
VERSION = "1.34"
# Of kubeflow.org/v2beta1, whose schema no package has: names of its types.go.
MPI_JOB = {
    "slotsPerWorker",
    "runLauncherAsWorker",
    "runPolicy",
    "mpiReplicaSpecs",
    "sshAuthMountPath",
    "launcherCreationPolicy",
    "mpiImplementation",
}


def read(name: str) -> dict[str, Any]:
    """The objects of a file, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / name).read_text())}


def check(thing: dict[str, Any]) -> None:
    """Fails where the thing is not as the schema has it, unknown names included."""
    kubernetes_validate.validate(thing, VERSION, strict=True)


def test_every_file_is_checked() -> None:
    assert {file.name for file in FOLDER.glob("*.yaml")} == {"collective.yaml", "mpijob.yaml"}


def test_objects_are_as_the_schema_has_them() -> None:
    objects = read("collective.yaml")
    assert objects.keys() == {"Service", "Job", "NetworkPolicy"}
    for each in objects.values():
        check(each)
    wrong = copy.deepcopy(objects["Job"])
    wrong["spec"]["completion"] = 2  # a name that does not exist: the check can fail
    with pytest.raises(kubernetes_validate.ValidationError):
        check(wrong)


def test_pods_of_the_mpi_job_are_as_the_schema_has_them() -> None:
    job = read("mpijob.yaml")["MPIJob"]
    assert job["apiVersion"] == "kubeflow.org/v2beta1"
    assert job["spec"].keys() <= MPI_JOB
    replicas = job["spec"]["mpiReplicaSpecs"]
    assert replicas.keys() == {"Launcher", "Worker"}
    for each in replicas.values():
        assert each.keys() <= {"replicas", "restartPolicy", "template"}
        check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **each["template"]})


def test_each_pod_of_the_indexed_job_finds_its_rank() -> None:
    objects = read("collective.yaml")
    spec = objects["Job"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    variables = {each["name"]: each for each in container["env"]}
    # $(INDEX) is replaced only if it stands before.
    assert list(variables) == ["INDEX", "TF_CONFIG"]
    names = []
    for index in range(spec["completions"]):
        given = {"TF_CONFIG": variables["TF_CONFIG"]["value"].replace("$(INDEX)", str(index))}
        found = cluster(given)
        assert found is not None
        names, rank = found
        assert rank == index
        assert choose("collective", given, None)[0] == "collective"
    port = objects["Service"]["spec"]["ports"][0]["port"]
    job, service = objects["Job"]["metadata"]["name"], objects["Service"]["metadata"]["name"]
    assert names == [f"{job}-{i}.{service}:{port}" for i in range(spec["parallelism"])]
    assert pod["subdomain"] == service
    assert objects["Service"]["spec"]["selector"] == {"job-name": job}


def test_policy_lets_the_pods_of_the_job_in() -> None:
    objects = read("collective.yaml")
    labels = objects["Job"]["spec"]["template"]["metadata"]["labels"]
    policy = objects["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": labels}}]


def test_image_has_what_the_jobs_start() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    for package in ("openmpi-bin", "openssh-server", "openssh-client"):
        assert package in text
    for copied in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        for name in copied.split():
            if name != "ooodist":  # it is installed here, and may not lie beside the tests
                assert (FOLDER.parents[1] / name).exists(), name

"""The chart of docs/deploy/helm: what Helm makes of it, where Helm is installed."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
import yaml

import ledgerlog
from tests.unit.test_deploy_files import DEPLOY, check

CHART = DEPLOY / "helm" / "ledgerlog"
NEEDED = {"metadata": "zk://zk:2181/ledgerlog", "secretName": "ledgerlog"}

with_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="Helm is not installed")


def helm(command: str, *words: str, **values: str) -> subprocess.CompletedProcess[str]:
    given = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return subprocess.run(
        ["helm", command, *words, *given], capture_output=True, encoding="utf-8", check=False, timeout=60
    )


def rendered(**values: str) -> dict[str, Any]:
    """The objects that a release named "prod" consists of, by kind."""
    made = helm("template", "prod", str(CHART), "--kube-version", "1.31.0", **NEEDED, **values)
    assert made.returncode == 0, made.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(made.stdout)}


def test_the_chart_installs_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == ledgerlog.__version__


@with_helm
def test_helm_finds_nothing_to_say() -> None:
    linted = helm("lint", "--strict", str(CHART), **NEEDED)
    assert linted.returncode == 0, linted.stdout


@with_helm
@pytest.mark.parametrize("missing", NEEDED)
def test_what_nobody_can_guess_must_be_given(missing: str) -> None:
    values = {key: value for key, value in NEEDED.items() if key != missing}
    refused = helm("template", "prod", str(CHART), "--kube-version", "1.31.0", **values)
    assert refused.returncode != 0
    assert f"{missing}: name the" in refused.stderr


@with_helm
def test_each_bookie_has_an_id_an_address_and_a_volume_of_its_own_and_commands_that_there_are() -> None:
    made = rendered(bookies="5")
    bookies = made["StatefulSet"]["spec"]
    assert bookies["replicas"] == 5
    pod = bookies["template"]["spec"]
    (container,) = pod["containers"]
    words = container["command"]
    check([word.partition("=")[0] for word in words])
    assert "--id=$(POD_NAME)" in words
    assert "--advertise=$(POD_NAME).prod-bookie.default.svc.cluster.local:3181" in words
    assert made["Service"]["metadata"]["name"] == bookies["serviceName"] == "prod-bookie"
    (volume,) = bookies["volumeClaimTemplates"]
    assert {"name": volume["metadata"]["name"], "mountPath": "/var/lib/ledgerlog"} in container[
        "volumeMounts"
    ]
    (job,) = made["Job"]["spec"]["template"]["spec"]["containers"]
    check(list(job["command"]))


@with_helm
def test_bookies_leave_one_at_a_time_and_their_writers_before_them() -> None:
    made = rendered(drainSeconds="40")
    bookies = made["StatefulSet"]["spec"]
    assert made["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    labels = bookies["template"]["metadata"]["labels"].items()
    assert made["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels
    assert made["Service"]["spec"]["selector"].items() <= labels
    pod = bookies["template"]["spec"]
    (container,) = pod["containers"]
    shell, option, script = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, option) == ("sh", "-c")
    words = script.split()
    assert words.pop(0) == "exec"
    assert words[-1] == "--within=40"
    check([word.partition("=")[0] for word in words])
    assert pod["terminationGracePeriodSeconds"] >= 40 + 60, "the drain, and then a stop"


@with_helm
def test_a_bookie_is_restarted_by_its_health_and_never_by_its_readiness() -> None:
    made = rendered()
    (container,) = made["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert made["StatefulSet"]["spec"]["podManagementPolicy"] == "Parallel", "limbo waits for the others"
    assert made["Service"]["spec"]["publishNotReadyAddresses"] is True


@with_helm
def test_pods_run_with_no_more_rights_than_they_need() -> None:
    made = rendered()
    for kind in ("StatefulSet", "Job"):
        pod = made[kind]["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in (*pod["initContainers"], *pod["containers"]):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}

"""What launched the processes must fit the configuration."""

from collections.abc import Callable

import pytest

from experiments.configuration import InputError
from replicas.training.experiment import Experiment
from replicas.training.parallel import cluster

Environment = dict[str, str]
TORCHRUN: Environment = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
SLURM: Environment = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "study",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "0",
}


@pytest.mark.parametrize(("name", "environment"), [("torchrun", TORCHRUN), ("Slurm", SLURM)])
def test_a_launcher_with_another_number_of_processes_is_refused(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch, name: str, environment: Environment
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    machine = tiny().machine
    two = machine.model_copy(update={"strategy": "fsdp", "devices": 2})
    assert len(cluster(two)) == (name == "Slurm")
    with pytest.raises(
        InputError, match=f"{name} started 2 processes, but `machine` has 1 devices x 1 nodes"
    ):
        cluster(machine)
    with pytest.raises(InputError, match="2 devices x 2 nodes = 4; make them equal"):
        cluster(two.model_copy(update={"nodes": 2}))


def test_what_lightning_cannot_use_of_slurm_is_the_users_to_change(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in SLURM.keys() - {"SLURM_NTASKS_PER_NODE"}:
        monkeypatch.setenv(variable, SLURM[variable])
    with pytest.raises(InputError, match=r"Slurm: .*Use `--ntasks-per-node=2` instead"):
        cluster(tiny().machine)


def test_without_a_launcher_lightning_starts_the_ranks(tiny: Callable[..., Experiment]) -> None:
    assert cluster(tiny().machine.model_copy(update={"strategy": "ddp", "devices": 2})) == []

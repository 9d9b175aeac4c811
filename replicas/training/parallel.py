"""How a model is spread over devices: the Lightning strategy, sharding, recomputation, compilation."""

import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from experiments.configuration import InputError
from replicas.models.architecture import LanguageModel
from replicas.models.expert_parallel import share_out
from replicas.training.experiment import Machine


def strategy(machine: Machine) -> Strategy | str:
    """The Lightning strategy of `machine`. FSDP writes a checkpoint as a folder, each rank its shards."""
    if machine.strategy == "fsdp":
        return ModelParallelStrategy(
            data_parallel_size=machine.ranks, tensor_parallel_size=1, save_distributed_checkpoint=True
        )
    if machine.strategy == "ddp":
        return DDPStrategy(broadcast_buffers=False)  # every rank computes the same router biases
    return "auto"


def cluster(machine: Machine) -> list[Any]:
    """Lightning plugins for what launched this process: torchrun or Slurm, or nothing, and Lightning launches.

    Raises:
        InputError: torchrun or Slurm started another number of processes than `machine` has ranks, or Slurm was
            used in a way that Lightning does not support.
    """
    launchers: dict[str, type[ClusterEnvironment]] = {
        "torchrun": TorchElasticEnvironment,
        "Slurm": SLURMEnvironment,
    }
    for name, launcher in launchers.items():
        try:
            started = launcher().world_size() if launcher.detect() else machine.ranks
        except RuntimeError as error:  # how Lightning refuses options of srun
            raise InputError(f"{name}: {error}") from None
        if started != machine.ranks:
            raise InputError(
                f"{name} started {started} processes, but `machine` has {machine.devices} devices x "
                f"{machine.nodes} nodes = {machine.ranks}; make them equal"
            )
    # our own resume checkpoints are all there is: no second kind by Lightning
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []


def use_threads(threads: int | None) -> None:
    """Let this process, and those that it launches, use `threads` CPU threads; None leaves it as it is."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # else Lightning's launcher sets its own number
        torch.set_num_threads(threads)


def prepare(model: LanguageModel, machine: Machine, mesh: DeviceMesh | None) -> None:
    """Recompute, compile and shard the blocks of `model` as `machine` says, in place.

    With expert parallelism, the ranks of one row of a mesh `[ranks / degree, degree]` share the experts out, and the
    ranks of one column, which hold the same experts, shard them (FSDP2); all else is sharded over all ranks.

    Args:
        mesh: one-dimensional device mesh of all ranks; only asked for with `fsdp`.

    Raises:
        InputError: blocks are to be compiled for a CPU, and there is no C++ compiler.
    """
    if machine.compile:
        _check_compiler(machine)
    for block in model.blocks():
        if machine.activation_checkpointing:
            _recompute(block)
        if machine.compile:
            block.compile()
    if machine.strategy == "fsdp":
        assert mesh is not None
        policy = MixedPrecisionPolicy()
        if machine.precision == "bf16-true":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if machine.expert_parallel_degree > 1:
            for experts, column in _shared_out(model, machine, mesh.device_type):
                fully_shard(experts, mesh=column, mp_policy=policy)
        for module in (*model.blocks(), model):
            fully_shard(module, mesh=mesh, mp_policy=policy)


def _check_compiler(machine: Machine) -> None:
    on_cpu = machine.accelerator == "cpu" or not torch.accelerator.is_available()
    compiler = os.environ.get(
        "CXX", "clang++" if sys.platform == "darwin" else "g++"
    )  # as inductor looks for it
    if on_cpu and shutil.which(compiler) is None:
        raise InputError(
            f"`machine.compile` needs a C++ compiler on a CPU, and there is no {compiler}; install it, name another "
            "one in CXX, or leave `compile` false"
        )


def _shared_out(
    model: LanguageModel, machine: Machine, device_type: str
) -> Iterator[tuple[nn.Module, DeviceMesh]]:
    """Share out the experts of each layer; yields them, and the ranks that hold the same ones."""
    degree = machine.expert_parallel_degree
    shape = (machine.ranks // degree, degree)
    mesh = init_device_mesh(device_type, shape, mesh_dim_names=("efsdp", "ep"))  # as torchtitan names them
    for experts in model.experts():
        share_out(experts, mesh["ep"])
        experts.group = mesh["ep"].get_group()  # type: ignore[assignment]
        yield experts, mesh["efsdp"]


def _recompute(block: nn.Module) -> None:
    """Keep only the input of `block` for its backward pass; its parameters keep their names."""
    forward = block.forward

    def recomputed(*args: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False)

    block.forward = recomputed

"""Train one experiment: plan, model, data, Lightning, and at the end a run folder."""

import json
import logging
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import DataLoader

from experiments.configuration import InputError
from experiments.progress import progress
from logs.schema import RunFacts, Schedule
from replicas.data.mixture import PackedMixture
from replicas.data.shards import open_shards
from replicas.models.portable import export_config, whole_weights
from replicas.plan import Plan
from replicas.published import Published, load_published
from replicas.training.checkpoints import (
    ResumeCheckpoints,
    TrainingInterrupted,
    finished_steps,
    newest_checkpoint,
    shardable,
    single_file,
)
from replicas.training.evaluation import evaluate, evaluation_steps
from replicas.training.experiment import Experiment, fingerprint, plan_experiment
from replicas.training.module import Replica, Rows, Steps
from replicas.training.parallel import cluster, strategy, use_threads
from replicas.training.run_folder import MetricLog, environment, write_run_folder


def train(experiment: Experiment, shards: Path, out: Path, state: Path = Path(".maquette")) -> bool:
    """Train `experiment` on `shards` and leave a run folder at `out`; resume from the last checkpoint if any.

    With several devices every process comes here: started by torchrun or Slurm, or else by the first, which has
    Lightning run the same command again for each further device of its node. Only rank 0 writes and shows anything.

    Args:
        shards: folder written by `replicas.data.shards`.
        state: where resume checkpoints and offline W&B files go; not versioned, safe to delete. All nodes share it.

    Returns:
        Whether this process is the one that left the run folder.

    Raises:
        InputError: the plan is impossible or does not fit the data, or the machine is not as configured.
        KeyboardInterrupt: SIGINT came; everything up to the last finished step is saved.
    """
    _quiet()
    published = load_published(experiment.public_run)
    data = open_shards(shards)
    planned = plan_experiment(experiment, published, len(data.token_bytes))
    mixture = PackedMixture(
        data,
        experiment.mixture,
        experiment.seq_len,
        experiment.batch_sequences,
        experiment.seed,
        name=f"mixture {experiment.mixture_name}",
    )
    resume = state / "checkpoints" / fingerprint(experiment, data.version)
    resume.mkdir(parents=True, exist_ok=True)
    use_threads(experiment.machine.threads)
    trainer = _trainer(experiment, planned.steps, state)
    checkpoint = newest_checkpoint(resume, tell=trainer.is_global_zero)
    first_step = finished_steps(checkpoint) if checkpoint else 0
    rows = resume / "metrics.jsonl"
    try:
        with _recording(trainer, experiment, planned.steps, rows, first_step, state) as write:
            weights = _fit(trainer, experiment, published, planned, mixture, resume, checkpoint, write)
    except TrainingInterrupted as stopped:
        if not trainer.is_global_zero:
            raise SystemExit(0) from None  # rank 0 says how it ended; a launcher would take more for a crash
        if stopped.signal_number == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + stopped.signal_number) from None
    if trainer.is_global_zero:
        _leave_run_folder(experiment, published, planned, mixture, rows, weights, out)
        shutil.rmtree(resume)
    return trainer.is_global_zero


@contextmanager
def _recording(
    trainer: Trainer, experiment: Experiment, steps: int, path: Path, first_step: int, state: Path
) -> Iterator[Callable[[Rows], None]]:
    """What takes finished rows: on rank 0 the row log at `path`, W&B and the progress bar, elsewhere nothing."""
    if not trainer.is_global_zero:
        yield lambda rows: None
        return
    logger = _wandb(experiment, path.parent.name, state)
    metrics = MetricLog(path, first_step)
    try:
        with progress(f"train {experiment.name}", steps, "steps", start=first_step) as advance:

            def write(rows: Rows) -> None:
                metrics.write(rows)
                for row in rows:
                    logger.log_metrics(row, step=row["step"])
                trained = [row for row in rows if "train/loss" in row]
                if trained:
                    advance(trained[-1]["step"] + 1, note=f"loss {trained[-1]['train/loss']:.3f}")

            yield write
        logger.experiment.finish()
    finally:
        metrics.close()


def _fit(
    trainer: Trainer,
    experiment: Experiment,
    published: Published,
    planned: Plan,
    mixture: PackedMixture,
    resume: Path,
    checkpoint: Path | None,
    write: Callable[[Rows], None],
) -> dict[str, Tensor]:
    """Train to the end; returns the final weights, complete on rank 0."""
    seed_everything(experiment.seed, verbose=False)
    model = published.architecture.Model(planned.config)
    model.initialise(experiment.seed)
    token_bytes = torch.tensor(mixture.shards.token_bytes, dtype=torch.int32)
    sequences = experiment.evaluation.sequences_per_domain
    held_out = {
        domain: list(mixture.evaluation_batches(domain, sequences, experiment.forward_sequences))
        for domain in mixture.domains
    }

    def batch(step: int) -> tuple[Tensor, Tensor]:
        packed = mixture.batch(step, trainer.global_rank, trainer.world_size)
        return torch.as_tensor(packed.input_ids), torch.as_tensor(packed.segment_ids)

    loader = DataLoader(Steps(batch, lambda: trainer.global_step, planned.steps), batch_size=None)
    with (
        ResumeCheckpoints(resume, experiment.checkpoint_every_seconds) as between_steps,
        TemporaryDirectory(dir=resume) as beside,
    ):
        module = Replica(
            model,
            planned,
            published.recipe,
            token_bytes,
            evaluate=lambda: evaluate(model, held_out, module.token_bytes, module.device),
            evaluate_after=evaluation_steps(planned.steps, experiment.evaluation.times),
            write=write,
            between_steps=between_steps,
            log_every_steps=experiment.log_every_steps,
            machine=experiment.machine,
        )
        if checkpoint:
            as_needed = shardable if experiment.machine.strategy == "fsdp" else single_file
            checkpoint = as_needed(checkpoint, Path(beside) / checkpoint.name)
        trainer.fit(module, loader, ckpt_path=checkpoint, weights_only=False)
        module.flush()
    return whole_weights(model)


def _trainer(experiment: Experiment, steps: int, state: Path) -> Trainer:
    machine = experiment.machine
    # FSDP's own policy computes in bfloat16; Lightning's bf16-true would have no float32 masters
    precision = "32-true" if machine.precision == "bf16-true" else machine.precision
    try:
        trainer = Trainer(
            accelerator=machine.accelerator,
            devices=machine.devices,
            num_nodes=machine.nodes,
            strategy=strategy(machine),
            plugins=cluster(machine),
            precision=precision,
            max_steps=steps,
            logger=False,  # `_recording` has it, on rank 0
            default_root_dir=state,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,  # the mixture slices its own batches by rank
            deterministic=True,
        )
    except MisconfigurationException as error:
        raise InputError(f"`machine` of run {experiment.name}: {error}") from None
    if trainer.precision != precision:  # Lightning would go on with another
        raise InputError(f"`machine.precision`: no {precision} on this device; choose {trainer.precision}")
    return trainer


def _wandb(experiment: Experiment, group: str, state: Path) -> WandbLogger:
    """The logger of a new W&B run: offline unless the user set WANDB_MODE (see `experiments.telemetry`).

    A resumed run is one more W&B run of the same group: W&B refuses an id that a killed process may still hold.
    The run is made here because Lightning would pass a setting that W&B warns of at every training.

    Raises:
        InputError: WANDB_MODE is no mode, is online where W&B knows no login or cannot be reached, or W&B's own
            service does not run here.
    """
    import wandb
    from wandb.sdk.lib.service.service_token import WandbServiceConnectionError

    mode: Any = os.environ.get("WANDB_MODE", "offline")
    if mode not in ("offline", "online", "disabled"):
        raise InputError(f"WANDB_MODE={mode}: choose offline, online or disabled")
    folder = state / "wandb"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        run = wandb.init(
            project="maquette",
            name=experiment.name,
            group=group,
            dir=folder,
            config=experiment.model_dump(),
            mode=mode,
        )
    except WandbServiceConnectionError as error:
        raise InputError(f"W&B: {error}; unset WANDB_SERVICE if it is set, or WANDB_MODE=disabled") from None
    except (wandb.Error, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"W&B in WANDB_MODE={mode}: {reason}; `wandb login`, or WANDB_MODE=offline"
        ) from None
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    return WandbLogger(experiment=run)


def _leave_run_folder(
    experiment: Experiment,
    published: Published,
    planned: Plan,
    mixture: PackedMixture,
    metrics: Path,
    weights: dict[str, Tensor],
    out: Path,
) -> None:
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    steps = [row for row in rows if "train/loss" in row]
    evaluations = [row for row in rows if "eval/mean/loss" in row]
    seconds = sum(row["tokens"] / (row["step"] + 1) / row["tokens_per_second"] for row in steps)
    write_run_folder(
        out,
        metrics,
        config=experiment.model_dump(mode="json"),
        documents={
            "plan.json": planned.to_json() | {"model": planned.config.model_dump()},
            "environment.json": environment(torch.get_num_threads(), experiment.machine.accelerator),
            "data.json": {
                "version": mixture.shards.version,
                "mixture_name": experiment.mixture_name,
                "mixture": experiment.mixture,
                "realised_shares": mixture.realised_shares(0, planned.steps - 1),
                "epochs": mixture.epochs(planned.steps - 1),
                "seed": experiment.seed,
            },
            "facts.json": facts(experiment, published, planned, mixture.shards.version).model_dump(),
            "summary.json": {
                "steps": len(steps),
                "tokens": steps[-1]["tokens"],
                "train_seconds": seconds,
                "tokens_per_second": steps[-1]["tokens"] / seconds,
                "final_train_loss": steps[-1]["train/loss"],
                **{key: value for key, value in evaluations[-1].items() if key.startswith("eval/")},
            },
        },
        model_config=export_config(_name(published), planned.config),
        weights=weights,
    )


def facts(experiment: Experiment, published: Published, planned: Plan, data_version: str) -> RunFacts:
    """What a comparison may need to know of this run, in the log schema's terms."""
    counted = published.architecture.count_parameters(planned.config)
    schedule, h = published.recipe.schedule, planned.hyperparameters
    return RunFacts(
        title=f"{published.run} at width {experiment.width} ({experiment.name})",
        architecture=_name(published),
        params_total=counted.total,
        params_active=counted.active,
        params_embedding=counted.embedding,
        params_lm_head=counted.lm_head,
        train_flops_per_token=float(published.architecture.train_flops_per_token(planned.config)),
        tokens_per_step=planned.tokens_per_step,
        seq_len=experiment.seq_len,
        batch_sequences=experiment.batch_sequences,
        steps_planned=planned.steps,
        tokens_planned=planned.tokens,
        schedule=Schedule(
            shape=schedule.shape,
            peak_lr=h.adamh if h.muonh is None else h.muonh,
            warmup_steps=planned.warmup_steps,
            total_steps=planned.steps,
            final_fraction=schedule.final_fraction,
        ),
        vocab_size=planned.config.vocab_size,
        tokenizer=f"byte-level BPE, {planned.config.vocab_size} tokens",
        data=f"mixture {experiment.mixture_name}",
        data_version=data_version[:12],
        mixture=experiment.mixture,
        optimizer=" + ".join(sorted(published.recipe.optimizer.groups)),
        precision=experiment.machine.precision,
        z_loss_in_loss=planned.config.z_loss > 0,
        drops_in_training=getattr(planned.config, "capacity_factor", None) is not None,
        evaluation_set="held-out documents per domain",
        counting_rule=f"that of {published.run}; active without embeddings and unvisited experts",
        seed=experiment.seed,
        experiment=experiment.name,
    )


def _name(published: Published) -> str:
    """Name of the architecture, that of its module."""
    return published.architecture.__name__.rsplit(".", 1)[1]


def _quiet() -> None:
    """Silence what Lightning says about itself; what it raises still comes through."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # finds its own collectives slow
    warnings.filterwarnings("ignore", module="lightning")
    # said if loss scaling refuses the first step; the schedule goes on by steps of the run, refused or not
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
    os.environ.setdefault("WANDB_SILENT", "true")

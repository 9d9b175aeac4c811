"""The Lightning module: loss, optimizer, schedule, router biases and the metrics of every step."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import IterableDataset

from experiments.configuration import InputError
from replicas import ranks
from replicas.models.architecture import LanguageModel
from replicas.models.kernels import cross_entropy_with_z
from replicas.optimizers.clipping import clip_by_group_norm
from replicas.optimizers.groups import build_optimizer
from replicas.optimizers.hyperball_adam import HyperballAdam
from replicas.optimizers.sharded import total_norm
from replicas.plan import Plan
from replicas.published import Recipe
from replicas.schedule import Schedule, learning_rate_schedule
from replicas.training.experiment import Machine
from replicas.training.global_batch import Part, batch_metrics, joined
from replicas.training.parallel import prepare

Rows = list[dict[str, Any]]


class Replica(LightningModule):
    """A shrunk published model, trained by the published recipe.

    Args:
        model: `model(input_ids, segment_ids) -> (logits, routings)`, with `set_router_biases(routings)`.
        token_bytes: `[vocab]`, UTF-8 bytes of each token.
        evaluate: held-out metrics of the model as it stands.
        evaluate_after: zero-based steps after which `evaluate` is called.
        write: takes finished rows, in step order; called every `log_every_steps` steps.
        between_steps: called once a step is wholly done and recorded; may save, or stop the run by raising.
        machine: how the model and each batch are spread; see `replicas.training.parallel`.
    """

    token_bytes: Tensor

    def __init__(
        self,
        model: LanguageModel,
        plan: Plan,
        recipe: Recipe,
        token_bytes: Tensor,
        evaluate: Callable[[], dict[str, float]],
        evaluate_after: set[int],
        write: Callable[[Rows], None],
        between_steps: Callable[[Trainer], None],
        log_every_steps: int,
        machine: Machine,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False  # one batch is one step, of any number of micro-batches
        self.model, self.plan, self.recipe, self.machine = model, plan, recipe, machine
        self.register_buffer("token_bytes", token_bytes, persistent=False)
        self.evaluate, self.evaluate_after, self.write = evaluate, evaluate_after, write
        self.between_steps, self.log_every_steps = between_steps, log_every_steps
        self.schedule: Schedule = learning_rate_schedule(
            total_steps=plan.steps, **recipe.schedule.model_dump()
        )
        self._pending: Rows = []
        self._row: dict[str, Any] = {}
        self._batch_ended = time.perf_counter()
        self._prepared = False

    def configure_model(self) -> None:
        """Spread the model over the devices, once."""
        if not self._prepared:
            mesh = self.device_mesh  # of FSDP alone
            prepare(self.model, self.machine, None if mesh is None else mesh["data_parallel"])
            self._prepared = True

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The published groups at the planned peaks, all under one schedule."""
        optimizer = build_optimizer(
            self.model,
            self.recipe.optimizer,
            self.plan.hyperparameters,
            self.plan.steps,
            self.machine.newton_schulz_precision,
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self.schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._batch_started = time.perf_counter()

    def on_train_start(self) -> None:
        step = torch.tensor(self.global_step, device=self.device)
        if ranks.least(step) != -ranks.least(-step):
            raise InputError("the ranks found different checkpoints; all nodes must share the state folder")

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One optimizer step on this rank's share of a batch, `input_ids` and `segment_ids` `[sequences, seq]`."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        micro_batches = list(zip(*(ids.chunk(self.machine.micro_batches) for ids in batch), strict=True))
        parts: list[Part] = []
        with torch.autocast(self.device.type, enabled=False):  # mixed precision is for `_forward` alone
            for input_ids, segment_ids in micro_batches:
                last = len(parts) + 1 == len(micro_batches)
                with self._gradients_stay_here(not last):
                    loss, part = self._forward(input_ids, segment_ids)
                    self.manual_backward(loss / len(micro_batches))
                parts.append(part)
            self._step(optimizer)
            part = joined(parts)
            self._row = batch_metrics(part) | {"grad_norm": self._grad_norm}
            self.model.set_router_biases(part.routings)

    def _forward(self, input_ids: Tensor, segment_ids: Tensor) -> tuple[Tensor, Part]:
        """Mean over predicted tokens of cross-entropy + z term: the value the public run logs as its loss.

        Every position predicts the next token of its sequence; the last one has nothing to predict.
        """
        targets = input_ids.roll(-1, dims=1)
        with self.trainer.precision_plugin.forward_context():
            logits, routings = self.model(input_ids, segment_ids)
            loss, nats = cross_entropy_with_z(
                logits.flatten(0, 1), targets.flatten(), float(self.model.config.z_loss)
            )
        loss, nats = loss.view_as(input_ids)[:, :-1].mean(), nats.view_as(input_ids)[:, :-1]
        text_bytes = self.token_bytes[targets[:, :-1]].sum()
        return loss, Part(loss.detach(), nats.sum(), text_bytes, routings)

    def _gradients_stay_here(self, wanted: bool) -> AbstractContextManager[None]:
        """While wanted, backward passes do not exchange gradients (DDP; FSDP2 always reduces, to save memory)."""
        strategy = self.trainer.strategy
        if wanted and isinstance(strategy, ParallelStrategy):
            return strategy.block_backward_sync()
        return nullcontext()

    def _step(self, optimizer: Any) -> None:
        """The optimizer's step and the schedule's; a step that the gradient scaler refuses is counted as skipped."""
        inner: HyperballAdam = optimizer.optimizer
        seen = inner.seen_steps
        optimizer.step()
        if inner.seen_steps == seen:
            inner.refuse()
        scheduler: Any = self.lr_schedulers()
        scheduler.step()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        self._grad_norm = total_norm(gradients)
        self._clip(optimizer)

    def _clip(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip as the recipe says, after `grad_norm` was taken."""
        max_norm = self.recipe.optimizer.max_grad_norm
        if max_norm is not None:
            clip_by_group_norm(optimizer, max_norm)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = self.global_step - 1
        rate, h = self.schedule(step), self.plan.hyperparameters
        now, tokens = time.perf_counter(), self.plan.tokens_per_step
        row = {
            "step": step,
            "tokens": (step + 1) * tokens,
            "samples": (step + 1) * self.plan.batch_sequences,
            "wall_time": time.time(),
            **self._row,
            "lr": rate * (h.adamh if h.muonh is None else h.muonh),
            "lr/adamh": rate * h.adamh,
            "lr/adam": rate * h.adam,
            "tokens_per_second": tokens / (now - self._batch_started),
            "data_wait": self._batch_started - self._batch_ended,
        }
        self._pending.append(row)
        self._report_skip(row)
        if step in self.evaluate_after:
            self._pending.append({key: row[key] for key in ("step", "tokens", "samples")} | self.evaluate())
            if isinstance(self.model, FSDPModule):
                self.model.reshard()  # a forward pass without a backward one leaves it whole
        if len(self._pending) >= self.log_every_steps:
            self.flush()
        self.between_steps(self.trainer)
        self._batch_ended = time.perf_counter()

    def _report_skip(self, row: dict[str, Any]) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        if isinstance(optimizer, HyperballAdam) and optimizer.last_skip is not None:
            row["optimizer/skipped_steps"] = optimizer.skipped_steps
            self.print(f"step {row['step']} skipped: {optimizer.last_skip}")

    def flush(self) -> None:
        """Hand the pending rows on; the one place where the device is waited for."""
        self.write([{key: _number(value) for key, value in row.items()} for row in self._pending])
        self._pending = []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.flush()
        checkpoint["replica"] = {"run": self.plan.run, "config": self.plan.config.model_dump(mode="json")}


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


class Steps(IterableDataset[tuple[Tensor, Tensor]]):
    """The batches of a run from the trainer's current step on, so that a resumed run goes on where it stopped."""

    def __init__(
        self, batch: Callable[[int], tuple[Tensor, Tensor]], first: Callable[[], int], steps: int
    ) -> None:
        self.batch, self.first, self.steps = batch, first, steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(self.first(), self.steps):
            yield self.batch(step)

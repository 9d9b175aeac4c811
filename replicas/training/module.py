"""The Lightning module: loss, optimizer, schedule, router biases and the metrics of every step."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.utils.data import IterableDataset

from replicas.models.architecture import LanguageModel
from replicas.models.kernels import cross_entropy_with_z
from replicas.optimizers.groups import build_optimizer
from replicas.optimizers.hyperball_adam import HyperballAdam
from replicas.plan import Plan
from replicas.published import Recipe
from replicas.schedule import Schedule, learning_rate_schedule

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
        newton_schulz_precision: str | None = None,
    ) -> None:
        super().__init__()
        self.model, self.plan, self.recipe = model, plan, recipe
        self.newton_schulz_precision = newton_schulz_precision
        self.register_buffer("token_bytes", token_bytes, persistent=False)
        self.evaluate, self.evaluate_after, self.write = evaluate, evaluate_after, write
        self.between_steps, self.log_every_steps = between_steps, log_every_steps
        self.schedule: Schedule = learning_rate_schedule(
            total_steps=plan.steps, **recipe.schedule.model_dump()
        )
        self._pending: Rows = []
        self._row: dict[str, Any] = {}
        self._batch_ended = time.perf_counter()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The published groups at the planned peaks, all under one schedule."""
        optimizer = build_optimizer(
            self.model,
            self.recipe.optimizer,
            self.plan.hyperparameters,
            self.plan.steps,
            self.newton_schulz_precision,
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self.schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._batch_started = time.perf_counter()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Mean over predicted tokens of cross-entropy + z term: the value the public run logs as its loss.

        Every position predicts the next token of its sequence; the last one has nothing to predict.
        """
        input_ids, segment_ids = batch
        logits, routings = self.model(input_ids, segment_ids)
        targets = input_ids.roll(-1, dims=1)
        loss, nats = cross_entropy_with_z(
            logits.flatten(0, 1), targets.flatten(), float(self.model.config.z_loss)
        )
        loss, nats = loss.view_as(input_ids)[:, :-1].mean(), nats.view_as(input_ids)[:, :-1]
        text_bytes = self.token_bytes[targets[:, :-1]].sum()
        self._row = {
            "train/loss": loss.detach(),
            "train/loss_bpb": nats.sum() / (text_bytes * 0.6931471805599453),
            **router_metrics(routings),
        }
        self._routings = routings
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        self._row["grad_norm"] = get_total_norm(gradients)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """The step, then the router biases that the next one will use."""
        super().optimizer_step(*args, **kwargs)
        self.model.set_router_biases(self._routings)
        self._routings = []

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


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def router_metrics(routings: list[Any]) -> dict[str, Tensor]:
    """Means over layers of what the public run logs of its routers; empty for a dense model."""
    if not routings:
        return {}
    names = {
        "router/entropy": "entropy",
        "router/load_balancing_loss": "load_balancing_loss",
        "router/z_loss": "router_z_loss",
        "router/drop_fraction": "drop_fraction",
    }
    return {key: torch.stack([getattr(r, name) for r in routings]).mean() for key, name in names.items()}


class Steps(IterableDataset[tuple[Tensor, Tensor]]):
    """The batches of a run from the trainer's current step on, so that a resumed run goes on where it stopped."""

    def __init__(
        self, batch: Callable[[int], tuple[Tensor, Tensor]], first: Callable[[], int], steps: int
    ) -> None:
        self.batch, self.first, self.steps = batch, first, steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(self.first(), self.steps):
            yield self.batch(step)

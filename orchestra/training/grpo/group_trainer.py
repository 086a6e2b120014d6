"""TRL's GRPOTrainer with our advantages, passes and importance weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestra.training.compute.accumulation import as_one, least_of_all, loss_in_parts, most_of_all
from orchestra.training.grpo.passes import tree_attention
from orchestra.training.grpo.passes.batches import keep_rows, weighed
from orchestra.training.grpo.passes.length_batching import ROWS, by_length
from orchestra.training.grpo.passes.micro_batches import in_micro_batches, parts_of
from orchestra.training.grpo.rollouts import Rounds
from orchestra.training.optimizer import OwnOptimizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def trainer_class() -> Any:
    """TRL's trainer with our advantages in place of its own (imported late: TRL takes seconds)."""
    import torch
    from trl import GRPOTrainer

    class GroupTrainer(OwnOptimizer, GRPOTrainer):
        rounds: Rounds
        sharing: Sequence[PreTrainedModel] = ()
        """Models that compute what rows share once."""
        budget: int | None = None
        """Most tokens of one pass; None: all rows are one."""
        one_pass = False
        """Whether the rows at hand are one part already."""

        sampled: dict[str, Any] | None = None
        """The batch whose loss is computed, where a server sampled it."""
        mismatch: Sequence[Any] = ()
        """Sums of `weighed`, of each part of the step so far."""

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            """TRL's loss, in parts of about `budget` tokens where the gradients of its rows are apart.

            Tokens that a server sampled are weighted by truncated importance sampling.
            """
            self.mismatch = []
            if self.top_entropy_quantile == 1:
                self._share_entropy(inputs["completion_mask"] * inputs["tool_mask"])
            apart = self.budget is not None and self.rounds.settings.rows_apart and torch.is_grad_enabled()
            loss = self._loss_in_parts(model, inputs) if apart else self._loss_of(model, inputs)
            if self.mismatch:
                sums = torch.stack(list(self.mismatch)).sum(dim=0)
                kl, clipped, count = self.accelerator.gather(sums[None]).sum(dim=0).tolist()
                mean = {"mismatch_kl": kl / max(count, 1.0), "mismatch_clipped": clipped / max(count, 1.0)}
                self.rounds.history[-1] |= {f"engine/{name}": value for name, value in mean.items()}
            return loss

        def get_high_entropy_mask(self, entropies: Any, mask: Any, threshold: float) -> Any:
            found = super().get_high_entropy_mask(entropies, mask, threshold)
            self._share_entropy(found)
            return found

        def _share_entropy(self, learns: Any) -> None:
            """Have the bonus be of the mean entropy of all ranks' tokens that learn, (row, time).

            TRL takes each rank's own mean, and ranks average what they get: one with few tokens, or none, would count
            as much as the others.
            """
            if self.accelerator.num_processes > 1 and (weight := self.rounds.settings.entropy):
                own = learns.sum().float()
                every = self.accelerator.reduce(own.clone(), reduction="sum")
                self.entropy_coef = float(weight * self.accelerator.num_processes * own / every.clamp(min=1.0))

        def _loss_in_parts(self, model: Any, inputs: dict[str, Any]) -> Any:
            ids, mask = (
                torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], dim=1) for name in ("ids", "mask")
            )
            parts = self._parts(ids, mask, inputs["completion_ids"].shape[1], shared=self._shares(model))
            batches = [keep_rows(inputs, torch.tensor(part, device=ids.device)) for part in parts]
            tokens = torch.stack([(one["completion_mask"] * one["tool_mask"]).sum() for one in batches])
            counts = self.accelerator.reduce(tokens.float(), reduction="sum").tolist()
            self.one_pass = True
            try:
                with as_one(self._metrics["train"], counts):
                    return loss_in_parts(
                        self.accelerator, model, len(batches), lambda part: self._loss_of(model, batches[part])
                    )
            finally:
                self.one_pass = False

        def _loss_of(self, model: Any, inputs: dict[str, Any]) -> Any:
            if "sampling_per_token_logps" not in inputs:
                return super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
            # What `use_vllm` means here and nowhere else: the loss is multiplied by `importance_sampling_ratio`.
            self.use_vllm, self.sampled = True, inputs
            try:
                return super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
            finally:
                self.use_vllm, self.sampled = False, None

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
            ours = torch.tensor(self.rounds.advantages, dtype=torch.float32, device=batch["advantages"].device)
            batch["advantages"] = ours
            # The DAPO loss divides by the tokens of the whole batch, so rows without advantage add nothing to the
            # gradient (without a KL term): leaving them out of the forward pass changes no number. Where only the
            # deciding tokens learn, their share is of the rows that have something to learn from.
            if self.beta == 0.0:
                rows = torch.nonzero(ours).flatten()
                # TRL gathers one number a row, so every rank keeps as many as the one that needs most; at least one.
                count = max(1, most_of_all(self.accelerator, len(rows)))
                spare = torch.nonzero(ours == 0).flatten()[: max(0, count - len(rows))]
                batch = keep_rows(batch, torch.cat([rows, spare]))
                # Nor do the spare ones count among those of which a share decides: one process has none of them.
                batch["tool_mask"][len(rows) :] = 0
            return batch

        def _get_per_token_logps_and_entropies(self, *given: Any, **named: Any) -> tuple[Any, Any, Any]:
            found = self._passed(*given, **named)
            if self.sampled is not None:
                cap = self.rounds.settings.server.importance_cap
                ratio, sums = weighed(self.sampled, found[0].detach(), cap)
                self.sampled["importance_sampling_ratio"] = ratio
                self.mismatch = [*self.mismatch, sums]
            return found

        def _passed(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, batch_size: int | None = None,
            compute_entropy: bool = False, **others: Any,
        ) -> tuple[Any, Any, Any]:  # fmt: skip
            inherited = super()._get_per_token_logps_and_entropies
            if any(value not in (None, False) for value in others.values()):
                return inherited(  # type: ignore[no-any-return]
                    model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others
                )
            several = self.accelerator.num_processes > 1 or self.is_deepspeed_enabled
            shared = self._shares(model)

            def forward(ids: Any, mask: Any, width: int) -> tuple[Any, Any]:
                if not shared:
                    logps, entropies, _ = inherited(model, ids, mask, width, compute_entropy=compute_entropy)
                    return logps, entropies
                with self.accelerator.autocast():
                    return tree_attention.scored(model, ids, mask, width)

            if self.one_pass:
                return *forward(input_ids, attention_mask, logits_to_keep), None
            if self.budget is None and not shared and not several:
                # Parts of a pass that is kept whole: DDP and ZeRO count passes.
                return *by_length(forward, input_ids, attention_mask, logits_to_keep, ROWS), None
            parts = self._parts(input_ids, attention_mask, logits_to_keep, shared=shared)
            return *in_micro_batches(forward, input_ids, attention_mask, logits_to_keep, parts), None

        def _shares(self, model: Any) -> bool:
            return any(self.accelerator.unwrap_model(model) is one for one in self.sharing)

        def _parts(self, ids: Any, mask: Any, width: int, *, shared: bool) -> list[list[int]]:
            """Rows of each pass; the passes of every rank have as many."""
            if self.budget is None:
                return [list(range(len(ids)))]
            return parts_of(ids, mask, width, self.budget, shared=shared, agree=partial(least_of_all, self.accelerator))

    return GroupTrainer

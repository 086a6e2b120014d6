"""Two optimizers as one: what a Trainer saves, restores and schedules."""

import copy

import torch

from orchestra.training.optimizer import MuonAdamW
from tests.support.worlds import same, tiny_model


def work(model: torch.nn.Module, optimizer: MuonAdamW, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 300, (2, 12), generator=generator)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


def test_every_weight_is_in_exactly_one_part() -> None:
    model = tiny_model()
    muon, adam = MuonAdamW(model, lr=0.01).parts
    hidden = [p for group in muon.param_groups for p in group["params"]]
    rest = [p for group in adam.param_groups for p in group["params"]]
    assert {id(p) for p in hidden} | {id(p) for p in rest} == {id(p) for p in model.parameters()}
    assert not {id(p) for p in hidden} & {id(p) for p in rest}
    assert all(p.ndim == 2 for p in hidden)
    assert id(model.get_input_embeddings().weight) in {id(p) for p in rest}


def test_a_restored_state_continues_as_if_nothing_had_happened() -> None:
    model = tiny_model()
    optimizer = MuonAdamW(model, lr=0.01)
    work(model, optimizer, 3)
    half, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    work(model, optimizer, 3, start=3)
    again = MuonAdamW(half, lr=0.5)
    again.load_state_dict(state)
    work(half, again, 3, start=3)
    assert same(model, half)


def test_a_schedule_reaches_both_parts_also_after_a_restore() -> None:
    model = tiny_model()
    optimizer = MuonAdamW(model, lr=0.01)
    state = copy.deepcopy(optimizer.state_dict())
    for restored in (False, True):
        if restored:
            optimizer.load_state_dict(state)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        work(model, optimizer, 1)
        schedule.step()
        rates = [group["lr"] for part in optimizer.parts for group in part.param_groups]
        assert rates == [0.05 / 2, 0.01 / 2]
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]


def test_a_rate_of_zero_moves_nothing_and_clearing_clears_all() -> None:
    model = tiny_model()
    optimizer = MuonAdamW(model, lr=0.01)
    before = copy.deepcopy(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    work(model, optimizer, 1)
    assert same(model, before)
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_no_gradient_no_step() -> None:
    """The first step of a group without advantage: gradients are zero, and nothing may become NaN."""
    model = tiny_model()
    optimizer = MuonAdamW(model, lr=0.01)
    before = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert same(model, before)

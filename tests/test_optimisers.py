"""Optimisers and their groups: as in torch's own loop, resumed exactly, and parts that learn as a method declares."""

from copy import deepcopy

import pytest
import torch

from afield import AfieldError
from afield.config.layers import resolve
from afield.config.network import NetworkOptions
from afield.config.training import TrainingOptions
from afield.methods import Learning
from afield.methods.baseline import Baseline
from afield.methods.create import create_method
from afield.networks import hold_still
from afield.results.folder import RunFolder
from afield.training.assemble import make_setup
from afield.training.loop import Loop
from afield.training.optimisers import Optimisers, kinds_of
from afield.training.schedules import learning_rate
from support.recipes import Small, build, make_batches, make_step, weights
from support.resuming import Killed, assert_equal_runs, every, kill_before_step

STEPS = 20
PLAIN = {"foreach": False, "fused": False}
SGD = torch.optim.SGD, {"momentum": 0.9}
NESTEROV = torch.optim.SGD, {"momentum": 0.9, "nesterov": True}
ADAM = torch.optim.Adam, {"betas": (0.8, 0.99)}
ADAMW = torch.optim.AdamW, {"betas": (0.8, 0.99)}
GROUPS = {"classifier": Learning(rate=3.0, weight_decay=0.0), "classifier.2": Learning(rate=0.5, weight_decay=0.1)}
KINDS = {"backbone": Learning(optimiser="sgd"), "classifier": Learning(rate=0.2, optimiser="adamw", weight_decay=0.3)}
ONE_GROUP = {"": (1.0, 0.02)}
THREE_GROUPS = {"backbone": (1.0, 0.02), "classifier.0": (3.0, 0.0), "classifier.2": (0.5, 0.1)}
OPTIONS = {"lr": 0.02, "weight_decay": 0.02, "warmup_steps": 3, "betas": (0.8, 0.99)}


def plain_loop(method, batches, parts, options):
    """Torch's optimisers without any of ours: `parts` are a name's beginning, rate, decay and optimiser."""
    optimisers = []
    for part, (rate, decay, (kind, arguments)) in parts.items():
        members = [parameter for name, parameter in method.named_parameters() if name.startswith(part)]
        optimisers.append((rate, kind(members, lr=1.0, weight_decay=decay, **arguments, **PLAIN)))
    for step, batch in enumerate(batches):
        for rate, optimiser in optimisers:
            optimiser.param_groups[0]["lr"] = rate * learning_rate(options, step)
            optimiser.zero_grad()
        sum(method.losses(batch).values()).backward()
        for _, optimiser in optimisers:
            optimiser.step()


@pytest.mark.parametrize("schedule", ["cosine", "inverse"])
@pytest.mark.parametrize(
    ("given", "declared", "parts"),
    [
        *(
            (given, declared, {part: (*how, optimiser) for part, how in parts.items()})
            for given, optimiser in (
                ({"optimiser": "sgd"}, SGD),
                ({"optimiser": "sgd", "nesterov": True}, NESTEROV),
                ({"optimiser": "adam"}, ADAM),
                ({"optimiser": "adamw"}, ADAMW),
            )
            for declared, parts in (({}, ONE_GROUP), (GROUPS, THREE_GROUPS))
        ),
        ({"optimiser": "adam"}, KINDS, {"backbone": (1.0, 0.02, SGD), "classifier": (0.2, 0.3, ADAMW)}),
        ({"momentum": 0.0}, {}, {"": (1.0, 0.02, (torch.optim.SGD, {}))}),
        (
            {"optimiser": "adam"},
            {"backbone": Learning(betas=(0.5, 0.9))},
            {"backbone": (1.0, 0.02, (torch.optim.Adam, {"betas": (0.5, 0.9)})), "classifier": (1.0, 0.02, ADAM)},
        ),
    ],
)
def test_a_run_of_steps_is_that_of_torchs_own_loop(given, declared, parts, schedule):
    ours, batches = build(declared=declared), make_batches(STEPS)
    theirs, start = deepcopy(ours), weights(ours)
    step = make_step(ours, batches, **OPTIONS, **given, schedule=schedule)
    for _ in batches:
        step()
    plain_loop(theirs, batches, parts, step.options)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-6, atol=1e-6)
    assert all((parameter - start[name]).abs().max() > 1e-3 for name, parameter in ours.named_parameters())


def test_two_phases_are_two_of_torchs_own_loops_one_after_the_other():
    class TwoPhases(Small):
        phases = (0.5,)

        def learning(self):
            return KINDS if self.phase else {"classifier.0": Learning(rate=0), "backbone": Learning(optimiser="adam")}

    ours, batches = build(TwoPhases), make_batches(STEPS)
    theirs = deepcopy(ours)
    step = make_step(ours, batches, **OPTIONS)
    for _ in batches:
        step()
    half = TrainingOptions(steps=STEPS // 2, **OPTIONS)
    theirs.classifier[0].requires_grad_(False)
    plain_loop(theirs, batches[: STEPS // 2], {"backbone": (1.0, 0.02, ADAM), "classifier": (1.0, 0.02, SGD)}, half)
    theirs.classifier[0].requires_grad_(True)
    parts = {"backbone": (1.0, 0.02, SGD), "classifier": (0.2, 0.3, ADAMW)}
    plain_loop(theirs, batches[STEPS // 2 :], parts, half)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-6, atol=1e-6)


def test_groups_of_one_kind_are_one_optimiser_and_their_rates_one_vector():
    step = make_step(build(declared=GROUPS | KINDS), make_batches(2), lr=0.5, schedule="constant")
    step()
    found = [(type(optimiser).__name__, len(optimiser.param_groups)) for optimiser in step.optimisers.all]
    assert found == [("SGD", 2), ("AdamW", 1)]
    groups = [group for optimiser in step.optimisers.all for group in optimiser.param_groups]
    assert [group["lr"].item() for group in groups] == pytest.approx([rate * 0.5 for rate in (1.0, 0.5, 0.2)])
    storage = step.optimisers.rates.untyped_storage().data_ptr()
    assert {group["lr"].untyped_storage().data_ptr() for group in groups} == {storage}


class Declaring(Baseline):
    """Parts of three rates, one of which stands still, and of two optimisers."""

    def learning(self):
        return {
            "backbone.0": Learning(rate=0.0),
            "backbone.2": Learning(rate=0.1, weight_decay=0.1),
            "classifier": Learning(rate=2.0, optimiser="adam"),
        }


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("far", {"training.optimiser": "adam"}),
        ("far", {"training.optimiser": "adamw", "network.hidden": [16], "network.dropout": 0.5}),
        ("far", {"training.nesterov": True}),
        ("adda", {"training.optimiser": "adam", "training.accumulate": 3, "data.placement": "streamed"}),
        ("declaring", {"training.schedule": "steps", "training.milestones": [5, 12]}),
        ("declaring", {"training.optimiser": "adamw", "training.schedule": "inverse", "training.accumulate": 2}),
    ],
)
def test_a_run_killed_and_resumed_at_step_10_equals_the_unbroken_one(train_toy, tmp_path, register, method, settings):
    register("declaring", Declaring)
    settings = {"training.lr": 0.003, **settings, **every(7, 10)}
    unbroken = train_toy(tmp_path / "unbroken", method, 20, settings=settings)
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 13)
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", method, 20, settings=settings)
    resumed = train_toy(tmp_path / "killed", method, 20, settings=settings, resume=True)
    assert_equal_runs(resumed, unbroken)


def test_what_an_optimiser_remembers_lies_in_memory_as_its_parameter_does_after_resuming_too(toy, tmp_path):
    layers = {"data": {"name": "toy"}, "task": {"target": "night"}, "network": {"width": 8}}
    layers["training"] = {"optimiser": "adam", "device": "cpu"}
    loop = Loop(make_setup(resolve(layers), toy), RunFolder(tmp_path), shown=False)
    loop._train_step()
    optimisers = loop.training.optimisers
    before = optimisers.state_dict()
    before = {name: {key: value.contiguous() for key, value in state.items()} for name, state in before.items()}
    optimisers.load_state_dict(before)
    for name, state in optimisers.state_dict().items():
        assert state.keys() == {"step", "exp_avg", "exp_avg_sq"}
        for key in ("exp_avg", "exp_avg_sq"):
            assert state[key].stride() == optimisers.parameters[name].stride()
            assert torch.equal(state[key], before[name][key])
    assert any(not p.is_contiguous() for p in optimisers.parameters.values()), "convolutions have channels last"


@pytest.mark.parametrize("change", ["parameter", "kind", "shape"])
def test_what_another_optimiser_remembers_is_refused(change):
    optimisers = make_step(build(), make_batches(1)).optimisers
    state = optimisers.state_dict()
    if change == "parameter":
        state["another"] = state.pop("classifier.0.bias")
    elif change == "kind":
        state["classifier.0.bias"]["exp_avg"] = state["classifier.0.bias"].pop("momentum_buffer")
    else:
        state["classifier.0.bias"]["momentum_buffer"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"another|classifier\.0\.bias"):
        optimisers.load_state_dict(state)


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
def test_a_part_with_rate_0_is_left_as_it_is(optimiser):
    declared = {"classifier": Learning(rate=0.0), "classifier.0.bias": Learning()}
    method, batches = build(declared=declared), make_batches(3)
    before = weights(method)
    step = make_step(method, batches, optimiser=optimiser, weight_decay=0.5, clip_norm=1.0)
    for _ in batches:
        step()
    moved = {name for name, value in weights(method).items() if not torch.equal(value, before[name])}
    assert moved == {"backbone.0.weight", "backbone.0.bias", "classifier.0.bias"}


def test_an_update_of_nothing_but_what_stands_still_changes_nothing():
    method = create_method("mcd", num_classes=3, num_sources=2, image_size=8, network={"width": 8})
    before = weights(method)
    make_step(method, make_batches(1), pretrained=True, pretrained_rate=0.0)()
    moved = {name for name, value in weights(method).items() if not torch.equal(value, before[name])}
    assert moved and not any(name.startswith("backbone") for name in moved)


def test_losses_that_nothing_can_learn_from_are_an_error():
    class Detached(Small):
        def losses_of(self, F, batch):
            return {name: value.detach() for name, value in super().losses_of(F, batch).items()}

    with pytest.raises(RuntimeError, match="does not require grad"):
        make_step(build(Detached), make_batches(1))()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            {"clasifier": Learning(rate=10)},
            "method Small declares how its part 'clasifier' learns, and has no such part; "
            "it has backbone, pool, classifier",
        ),
        ({"classifier.1.weight": Learning()}, r"its part 'classifier\.1\.weight' learns"),
        ({"": Learning()}, "its part '' learns"),
        ({"classifier": Learning(rate=-1)}, "method Small declares a rate or weight decay below 0 .* 'classifier'"),
        ({"classifier": Learning(weight_decay=-1)}, "method Small declares a rate or weight decay below 0"),
        ({"classifier": Learning(betas=(0.5, 1))}, "method Small declares betas that are not between 0 and 1"),
        ({"classifier": Learning(optimiser="adm")}, "unknown optimiser of part 'classifier' of method Small 'adm'"),
        ({"classifier": Learning(rate=0), "backbone": Learning(rate=0)}, "nothing of method Small learns"),
    ],
)
def test_a_declaration_that_cannot_be_is_one_line(declared, message):
    with pytest.raises(AfieldError, match=message) as caught:
        make_step(build(declared=declared), make_batches(1))
    assert "\n" not in str(caught.value)


def test_a_declaration_that_cannot_be_leaves_no_folder(train_toy, tmp_path, register):
    class Misspelt(Baseline):
        def learning(self):
            return {"clasifier": Learning(rate=10)}

    register("misspelt", Misspelt)
    with pytest.raises(AfieldError, match="method Misspelt declares how its part 'clasifier' learns"):
        train_toy(tmp_path / "run", "misspelt")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "slow"),
    [
        ("far", ["backbone.backbone."]),
        ("adda", ["backbone.backbone.", "source_backbone.backbone."]),
        ("epi-fcr", ["backbone.backbone.", *(f"source_backbones.{number}.backbone." for number in range(3))]),
        ("crossgrad", ["backbone.backbone.", "domain_network.0.backbone."]),
    ],
)
def test_a_pretrained_backbone_and_its_copies_learn_slowly_and_their_necks_do_not(name, slow):
    method = create_method(name, num_classes=3, num_sources=3, network={"width": 8, "neck": [6]})
    for pretrained in (True, False):
        rates = {name: kind.rate for name, kind in kinds_of(method, TrainingOptions(), pretrained).items()}
        expected = {name: 0.1 if pretrained and name.startswith(tuple(slow)) else 1.0 for name in rates}
        assert rates == expected


def test_a_declared_rate_and_that_of_a_pretrained_backbone_multiply():
    method = build(declared={"backbone": Learning(rate=0.5)})
    kinds = kinds_of(method, TrainingOptions(pretrained_rate=0.2), True)
    rates = {name: kind.rate for name, kind in kinds.items()}
    assert rates["backbone.0.weight"] == pytest.approx(0.1)
    assert rates["classifier.0.weight"] == 1.0


def test_a_resumed_run_still_knows_that_its_backbone_was_pretrained(train_toy, tmp_path, monkeypatch):
    multiples, plain = [], Loop._train_step

    def step(loop):
        multiples.append(loop.training.optimisers.multiples.tolist())
        if len(multiples) == 3:
            raise Killed
        plain(loop)

    monkeypatch.setattr(NetworkOptions, "starts_trained", property(lambda self: True))
    monkeypatch.setattr(Loop, "_train_step", step)
    settings = {"training.checkpoint_every": 1}
    with pytest.raises(Killed):
        train_toy(tmp_path / "run", "baseline", 4, settings=settings)
    train_toy(tmp_path / "run", "baseline", 4, settings=settings, resume=True)
    assert len(multiples) == 5
    assert all(row == pytest.approx([0.1, 1.0]) for row in multiples)


def test_a_part_that_stands_still_keeps_its_batch_norm_and_drops_nothing():
    torch.manual_seed(0)
    network = {"width": 8, "neck": [12, 6], "dropout": 0.5}
    method = create_method("baseline", num_classes=3, num_sources=2, network=network)
    method.learning = lambda: {"backbone": Learning(rate=0)}
    options = TrainingOptions(steps=3)
    Optimisers(method, options, torch.device("cpu"), pretrained=False, recorded=False)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    images = torch.randn(4, 3, 32, 32)
    method.train()
    assert torch.equal(method.backbone(images), method.backbone(images))
    assert method.classifier.training
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


def test_what_a_phase_lets_go_learns_again_and_what_never_learned_does_not():
    method = create_method("baseline", num_classes=3, num_sources=2, network={"width": 8, "neck": [6]})
    method.learning = lambda: {"backbone": Learning(rate=0)}
    first, second, *_ = (norm for norm in method.backbone.modules() if isinstance(norm, torch.nn.BatchNorm2d))
    hold_still(first)
    first.weight.requires_grad_(False)
    optimisers = Optimisers(method, TrainingOptions(steps=3), torch.device("cpu"), pretrained=False, recorded=False)
    assert not any(parameter.requires_grad for parameter in method.backbone.parameters())
    assert not any(part.training for part in method.train().backbone.modules())
    optimisers.let_go()
    assert [p for p in method.parameters() if not p.requires_grad] == [first.weight]
    assert second.weight.requires_grad
    assert [part for part in method.train().modules() if not part.training] == [first]


def test_a_declaration_reaches_a_part_by_any_of_its_names():
    method = build(declared={"network.0": Learning(rate=0.5)})
    method.network = torch.nn.Sequential(method.backbone, method.pool)
    kinds = kinds_of(method, TrainingOptions(), pretrained=False)
    assert {kind.rate for name, kind in kinds.items() if name.startswith("backbone.")} == {0.5}
    assert kinds["classifier.0.weight"].rate == 1.0

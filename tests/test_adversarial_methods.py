"""DANN, CDAN, ADDA, DCTN and MME together: which loss trains which part, the loop, and that they help."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from afield.data.batches import Batch
from afield.methods.create import create_method
from support.adversarial import SOURCES, build, gradients, make_batch
from support.comparing import same, swap_first_sources
from support.recipes import make_step
from support.resuming import Killed, assert_equal_runs, kill_before_step

METHODS = ("dann", "cdan", "adda", "dctn", "mme")
ROUTES = {
    "dann": {"classification": {"backbone", "classifier"}, "domain": {"discriminator"}, "adversary": {"backbone"}},
    "cdan": {
        "classification": {"backbone", "classifier"},
        "domain": {"discriminator"},
        "adversary": {"backbone", "classifier"},
    },
    "dctn": {
        "classification": {"backbone", "classifier"},
        "discriminators": {"discriminators"},
        "confusion": {"backbone"},
        "pseudo_labels": {"backbone", "classifier"},
    },
    "mme": {"classification": {"backbone", "classifier"}, "entropy": {"backbone", "classifier"}},
}


@pytest.mark.parametrize("name", ROUTES)
def test_each_loss_trains_its_parts_only(name):
    method, batch = build(name, **({"threshold": 0.0} if name == "dctn" else {})), make_batch()
    names = [parameter for parameter, _ in method.named_parameters()]
    reached = {
        loss: {
            part.split(".")[0] for part, g in zip(names, gradients(value, method.parameters()), strict=True) if g.any()
        }
        for loss, value in method.losses(batch).items()
    }
    assert reached == ROUTES[name]


@pytest.mark.parametrize(
    ("name", "phase"), [("dann", 0), ("cdan", 0), ("dctn", 0), ("dctn", 1), ("mme", 0), ("adda", 0), ("adda", 1)]
)
def test_swapping_two_sources_changes_nothing(name, phase):
    options = {"threshold": 0.0} if name == "dctn" else {}
    method, other, batch = build(name, **options), build(name, **options), make_batch()
    if name == "dctn":  # what belongs to a source goes with it
        swapped = {0: "1", 1: "0", 2: "2"}
        for parts in ("classifier", "discriminators"):
            for number, key in swapped.items():
                getattr(other, parts)[number].load_state_dict(getattr(method, parts)[int(key)].state_dict())
    losses = []
    for m, b in ((method, batch), (other, swap_first_sources(batch))):
        m.phase = phase
        losses.append(m.losses(b))
    assert losses[0].keys() == losses[1].keys()
    for key in losses[0]:
        same(losses[0][key], losses[1][key])


@pytest.mark.parametrize("name", METHODS)
def test_losses_stay_in_float32_in_autocast_and_are_one_graph_for_the_compiler(name):
    method, batch = build(name, hidden=(6,)).float(), make_batch()
    batch = Batch(batch.images.float(), batch.labels, SOURCES)
    for phase in range(1 + len(method.phases)):
        method.phase = phase
        with torch.autocast("cpu", torch.bfloat16):
            losses = method.losses(batch)
        assert all(value.dtype == torch.float32 and value.isfinite() for value in losses.values())
        method.eval()  # or the running averages would move between the two
        F = method.backbone(method.images(batch))
        state = {key: value.clone() for key, value in method.state_dict().items()}
        plain = method.losses_of(F, batch)
        method.load_state_dict(state)
        compiled = torch.compile(method.losses_of, fullgraph=True, backend="eager")(F, batch)
        torch.testing.assert_close(compiled, plain)
        method.train()


@pytest.mark.parametrize("name", ["adda", "dctn"])
def test_a_run_killed_in_its_second_phase_resumes_within_it(train_toy, tmp_path, name):
    # The phase begins at step 6, and the last checkpoint before the kill is that of step 8.
    settings = {"method.discriminator_width": 16}
    unbroken = train_toy(tmp_path / "unbroken", name, settings=settings)
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 11)
        with pytest.raises(Killed):
            train_toy(tmp_path / "killed", name, settings=settings)
    assert_equal_runs(train_toy(tmp_path / "killed", name, settings=settings, resume=True), unbroken)


# Learning. Classes differ in two coordinates: by 2.5 in the first and, more visibly, by 4 in the second. In the target
# the second is shifted, by more than half of that: who leans on it fails.

SHIFTS, STEPS, RATE, IMAGES = (0.0, 0.5, 2.5), 400, 0.02, 32


def draw(domain, count, generator):
    labels = torch.randint(2, (count,), generator=generator)
    vectors = 0.4 * torch.randn(count, 2, generator=generator)
    vectors += (2 * labels[:, None] - 1) * torch.tensor([1.25, 2.0])
    vectors[:, 1] += SHIFTS[domain]
    return vectors.view(count, 2, 1, 1), labels


def target_accuracy(name, seed):
    """Of a method on a small stand-in for the backbone, trained by the loop's own steps."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    options = {} if name in ("baseline", "mme") else {"discriminator_width": 64}
    if name == "adda":
        options["adversary_rate"] = 0.0002 / RATE
    method = create_method(name, num_classes=2, num_sources=2, network={"width": 8}, **options)
    layers = nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()
    method.backbone = nn.Sequential(nn.Flatten(), *layers, nn.Unflatten(1, (16, 1, 1)))
    if name == "adda":
        method.source_backbone = deepcopy(method.backbone).requires_grad_(False)
    batches = []
    for _ in range(STEPS):
        images, labels = zip(*(draw(domain, IMAGES, generator) for domain in range(3)), strict=True)
        batches.append(Batch(torch.cat(images), torch.cat(labels[:2]), 2))
    step = make_step(method, batches, lr=RATE)
    for _ in batches:
        step()
    images, labels = draw(2, 1000, generator)
    return (method.eval()(images).argmax(dim=1) == labels).double().mean().item()


@pytest.fixture(scope="module")
def baseline_accuracy():
    return mean_accuracy("baseline")


def mean_accuracy(name):
    return sum(target_accuracy(name, seed) for seed in range(4)) / 4


# Of the seeds 0 to 11, dann is above the baseline in 12, dctn in 11, adda in 9 and mme in 6: there entropy makes a good
# start better, and a bad one worse.
@pytest.mark.parametrize("name", METHODS)
def test_it_beats_the_baseline_on_a_shifted_target(name, baseline_accuracy):
    assert mean_accuracy(name) > baseline_accuracy + 0.05

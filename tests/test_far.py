import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from afield.config.catalogue import find_entry, list_methods
from afield.data.batches import Batch
from afield.losses import (
    class_confusion,
    class_shortage,
    dual_ranking_entropy,
    entropy,
    expert_consistency,
    moment_distance,
    prototype_loss,
    ranking_entropy_minus,
    ranking_entropy_plus,
    unranked_entropy,
)
from support.comparing import same
from support.far import PER_DOMAIN, SOURCES, build, by_hand, classify, make_batch

EVERYTHING = {"backbone", "fa", "fr", "classifier", "experts", "alignment"}
FAR_LOSSES = {"classification", "aligned", "align", "domain", "dre", "prototypes", "experts", "consistency"}
LOSSES = {
    "baseline": {"classification"},
    "baseline-align": {"classification", "align", "domain"},
    "baseline-att-align": {"classification", "align", "domain"},
    "far-paper": FAR_LOSSES - {"aligned", "domain", "prototypes"},
    "far-without-dre": FAR_LOSSES - {"dre"},
    "far-without-experts": FAR_LOSSES - {"experts", "consistency"},
    **dict.fromkeys(("far", "far-conv", "far-channel-gate", "far-spatial-gate"), FAR_LOSSES),
    **dict.fromkeys(("far-without-dre-plus", "far-without-dre-minus", "far-without-ranking"), FAR_LOSSES),
}


def gradients(loss, method):
    """Of one loss, by every parameter; zeros where it does not reach."""
    parameters = list(method.parameters())
    return torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("gate", ["both", "channel", "spatial", "conv"])
def test_the_vectors_are_pooled_from_the_parts_of_the_map(gate):
    method, images = build(gate=gate), make_batch().images
    F, A, R_plus, R_minus = by_hand(method, images)
    assert all(part.abs().sum() > 0 for part in (A, R_plus, R_minus))
    same(method.restored(F, A), R_plus)
    f_plus, f, f_minus = method.vectors(F, A, method.pool(F))
    same(f_plus, method.pool(A + R_plus))
    same(f, method.pool(A))
    same(f_minus, method.pool(A + R_minus))


@pytest.mark.parametrize("hidden", [(), (6,)])
def test_forward_classifies_the_aligned_and_restored_feature(hidden):
    method, images = build(hidden=hidden).eval(), make_batch().images
    _, A, R_plus, _ = by_hand(method, images)
    same(method(images), classify(method, A + R_plus))
    assert not torch.allclose(method(images), classify(method, A))


def test_inspection_classifies_every_feature_and_measures_both_gates():
    method, images = build().eval(), make_batch().images
    seen = method.inspect(images)
    F, A, R_plus, R_minus = by_hand(method, images)
    features = {"F": F, "A": A, "A+R+": A + R_plus, "A+R-": A + R_minus}
    assert seen.views.keys() == features.keys()
    for name, feature in features.items():
        same(seen.views[name], classify(method, feature))
    same(seen.scores, method(images))
    size = (1, 2, 3)
    same(seen.gates["kept"], A.abs().sum(size) / F.abs().sum(size))
    same(seen.gates["restored"], R_plus.abs().sum(size) / (F - A).abs().sum(size))


def test_every_variant_of_the_table_is_listed():
    assert LOSSES.keys() <= set(list_methods())


@pytest.mark.parametrize("target", [True, False], ids=["uda", "dg"])
def test_every_variant_has_its_losses_and_learns_from_them(target):
    for name, expected in LOSSES.items():
        method = build(name)
        losses = method.losses(make_batch(target))
        assert losses.keys() == (expected if target else expected - {"domain"}), name
        assert all(loss.isfinite() and loss.shape == () for loss in losses.values()), name
        sum(losses.values()).backward()
        learning = [p for part, p in method.named_parameters() if target or "discriminator" not in part]
        assert all(p.grad is not None and p.grad.isfinite().all() for p in learning), name
        assert method.ramped <= FAR_LOSSES - {"classification", "aligned", "domain", "prototypes", "experts"}, name


SURE = 0.3
WEIGHTS = {"align_weight": 0.7, "dre_weight": 0.3, "consistency_weight": 5.0, "aligned_classification_weight": 0.2}
WEIGHTS |= {"prototypes_weight": 0.4, "prototypes_threshold": SURE}
RANKINGS = {
    "far": lambda e, r, c, measure: dual_ranking_entropy(e, r, c, measure),
    "far-without-dre-minus": lambda e, r, c, measure: ranking_entropy_plus(e, r, measure),
    "far-without-dre-plus": lambda e, r, c, measure: ranking_entropy_minus(r, c, measure),
    "far-without-ranking": lambda e, r, c, measure: unranked_entropy(e, c, measure),
}
BALANCE = 0.25


@pytest.mark.parametrize("target", [True, False], ids=["uda", "dg"])
@pytest.mark.parametrize("routing", ["end-to-end", "selective"])
@pytest.mark.parametrize("reference_is", ["live", "detached"])
@pytest.mark.parametrize("name", RANKINGS)
@pytest.mark.parametrize("measure", [entropy, class_confusion])
def test_losses_are_those_of_the_paper_times_their_weights(measure, name, reference_is, routing, target):
    options = {"alignment": "moments", "dre_reference": reference_is, "dre_balance": BALANCE, **WEIGHTS}
    options |= {"dre_measure": "entropy" if measure is entropy else "confusion", "minus_trains": "all"}
    method = build(name, routing=routing, experts_shape_backbone=True, **options)
    batch = make_batch(target)
    F, A, R_plus, R_minus = by_hand(method, batch.images)
    labelled = SOURCES * PER_DOMAIN
    enhanced, reference, contaminated = (classify(method, f) for f in (A + R_plus, A, A + R_minus))
    domains = A.mean(dim=(2, 3)).view(SOURCES + target, PER_DOMAIN, -1)
    ranked_by = reference if reference_is == "live" else reference.detach()
    imbalance = BALANCE * class_shortage(enhanced[labelled:]) if target and measure is entropy else 0
    ranked_from = labelled if target and measure is class_confusion else 0
    ranked = [scores[ranked_from:] for scores in (enhanced, ranked_by, contaminated)]
    slices = method.pool(F[:labelled]).view(SOURCES, PER_DOMAIN, -1)
    experts = zip(slices, method.experts.weight, method.experts.bias, strict=True)
    taught = [vectors @ weight + bias for vectors, weight, bias in experts]
    classes, said = enhanced.shape[1], enhanced[labelled:].softmax(dim=1)
    sure = (said.amax(dim=1, keepdim=True) >= SURE).double()
    members = torch.cat((one_hot(batch.labels, classes), sure * one_hot(said.argmax(dim=1), classes)))
    expected = {
        "classification": cross_entropy(enhanced[:labelled], batch.labels),
        "aligned": 0.2 * cross_entropy(reference[:labelled], batch.labels),
        "align": 0.7 * moment_distance(domains, has_target=target),
        "prototypes": 0.4 * prototype_loss(*(batch.by_domain(each) for each in (method.pool(A + R_plus), members))),
        "dre": 0.3 * (RANKINGS[name](*ranked, measure) + imbalance),
        "experts": cross_entropy(torch.cat(taught), batch.labels),
        "consistency": 5.0 * expert_consistency(enhanced[:labelled], torch.cat(taught)),
    }
    for loss, value in method.losses(batch).items():
        same(value, expected[loss])
        if routing == "end-to-end":
            same(gradients(value, method), gradients(expected[loss], method))


@pytest.mark.parametrize("name", ["baseline-align", "baseline-att-align"])
def test_the_rungs_below_far_align_what_they_classify(name):
    method, batch = build(name, alignment="moments", align_weight=0.5), make_batch()
    F = method.backbone(batch.images)
    features = F if name == "baseline-align" else method.fa(F)
    losses = method.losses(batch)
    domains = features.mean(dim=(2, 3)).view(SOURCES + 1, PER_DOMAIN, -1)
    same(losses["align"], 0.5 * moment_distance(domains, has_target=True))
    scores = classify(method, features)
    same(losses["classification"], cross_entropy(scores[: SOURCES * PER_DOMAIN], batch.labels))
    same(method.inspect(batch.images).scores, scores)
    views = {"F": classify(method, F), "A": scores} if name == "baseline-att-align" else {}
    same(method.inspect(batch.images).views, views)
    same(method(batch.images), scores)


def test_the_papers_preset_sets_every_option_to_the_papers():
    assert build("far-paper").options.model_dump() == {
        "alignment": "moments",
        "directions_weight": 0.2,  # of an alignment that is not chosen
        "conditional": False,
        "pull_limit": 0.0,
        "align_weight": 0.5,
        "dre_weight": 0.1,
        "consistency_weight": 100.0,
        "aligned_classification_weight": 0.0,
        "projected_gate": False,
        "gate": "both",
        "reduction": 8,
        "routing": "end-to-end",
        "dre": "dual",
        "dre_measure": "entropy",
        "minus_trains": "all",
        "dre_reference": "live",
        "dre_balance": 0.0,
        "prototypes_weight": 0.0,
        "prototypes_threshold": 0.9,
        "experts": True,
        "experts_shape_backbone": True,
    }
    fixed = find_entry("far-paper").fixed
    assert (fixed["training"], fixed["network"]) == ({"ramp": "constant"}, {"pool": "average"})


def test_experts_are_dropped_without_changing_predictions():
    method, images = build().eval(), make_batch().images
    before = method(images)
    assert len(method.experts) == SOURCES
    method.drop_training_parts()
    assert method.experts is None
    assert method.alignment is None
    assert not any(name.startswith(("experts", "alignment")) for name in method.state_dict())
    assert torch.equal(method(images), before)


def test_the_baseline_does_not_look_at_target_images():
    def learn(images):
        method = build("baseline")
        loss = method.losses(Batch(images, batch.labels, SOURCES))["classification"]
        loss.backward()
        return [loss, *(p.grad for p in method.parameters()), *method.buffers()]

    batch = make_batch()
    changed = batch.images.clone()
    changed[batch.num_labelled :] += 10
    assert all(torch.equal(a, b) for a, b in zip(learn(batch.images), learn(changed), strict=True))


def reached(method, loss, batch):
    """Names of the parameters that one backward pass of one loss gives a gradient other than zero."""
    method.zero_grad()
    method.losses(batch)[loss].backward()
    return {name for name, p in method.named_parameters() if p.grad is not None and p.grad.abs().max() > 1e-12}


def parameters_of(method, groups):
    """Names of the groups' parameters."""
    return {name for name, _ in method.named_parameters() if name.split(".")[0] in groups}


PATH = {"backbone", "fa", "fr", "classifier"}
ROUTES = {
    "selective": {"align": {"fa"}, "dre": {"fr"}, "consistency": {"classifier"}},
    "end-to-end": {"align": {"backbone", "fa"}, "dre": PATH, "consistency": PATH},
}


@pytest.mark.parametrize("hidden", [(), (6,)])
@pytest.mark.parametrize("shape_backbone", [False, True])
@pytest.mark.parametrize("routing", ROUTES)
def test_each_loss_reaches_exactly_the_parameters_it_may_update(routing, shape_backbone, hidden):
    method = build(routing=routing, experts_shape_backbone=shape_backbone, hidden=hidden)
    experts = {"experts", "backbone"} if shape_backbone else {"experts"}
    routes = {"classification": PATH, "aligned": PATH - {"fr"}, "experts": experts, **ROUTES[routing]}
    routes |= {"domain": {"alignment"}, "prototypes": PATH - {"classifier"}}
    assert routes.keys() == FAR_LOSSES
    for loss, groups in routes.items():
        names = reached(method, loss, make_batch())
        # Batch norm in the head subtracts the bias of the layer before it as well.
        expected = parameters_of(method, groups) - ({"classifier.0.bias"} if hidden else set())
        assert names == expected, loss


def test_the_contaminated_feature_may_train_what_restores_alone():
    batch, losses = make_batch(), {}
    for trained in ("all", "FR"):
        method = build(dre="minus", minus_trains=trained)
        losses[trained] = method.losses(batch)["dre"]
        assert reached(method, "dre", batch) == parameters_of(method, PATH if trained == "all" else {"fr"})
    same(losses["FR"], losses["all"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gate": "conv"},
        {"gate": "channel", "dre": "plus"},
        {"gate": "spatial", "dre": "minus", "minus_trains": "all"},
        {"hidden": (6,), "dre": "unranked"},
        {"projected_gate": False, "experts_shape_backbone": True, "consistency_weight": 100.0},
    ],
    ids=str,
)
def test_one_selective_pass_equals_a_separate_pass_for_each_loss(options):
    batch = make_batch()
    selective, end_to_end = build(routing="selective", **options), build(routing="end-to-end", **options)
    end_to_end.load_state_dict(selective.state_dict())
    sum(selective.losses(batch).values()).backward()
    separate = {name: torch.zeros_like(p) for name, p in end_to_end.named_parameters()}
    whole = {name: torch.zeros_like(p) for name, p in end_to_end.named_parameters()}
    for loss, value in end_to_end.losses(batch).items():
        for name, gradient in zip(separate, gradients(value, end_to_end), strict=True):
            whole[name] += gradient
            if name.split(".")[0] in ROUTES["selective"].get(loss, EVERYTHING):
                separate[name] += gradient
    for name, p in selective.named_parameters():
        same(p.grad, separate[name])
    # The routings do differ, in every part but the experts.
    for group in PATH:
        assert any(not torch.allclose(separate[n], whole[n]) for n in separate if n.startswith(group)), group


def test_learning_costs_one_pass_forward_and_one_back_through_the_backbone():
    passes = []

    def count(module, inputs, output):
        passes.append("forward")
        output.register_hook(lambda gradient: passes.append("backward"))

    for options in [*({"name": name} for name in LOSSES), {"routing": "selective"}]:
        method = build(**options)
        method.backbone.register_forward_hook(count)
        passes.clear()
        sum(method.losses(make_batch()).values()).backward()
        assert passes == ["forward", "backward"], options

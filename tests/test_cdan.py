"""CDAN: what the discriminator reads, by which images count, and which part descends which gradient."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from afield.losses import entropy
from afield.methods.dann import domain_loss
from afield.networks import MultilinearMap, RandomisedMap
from support.adversarial import CLASSES, build, gradients, make_batch
from support.comparing import normal, same


def test_the_multilinear_map_is_the_outer_product():
    f, g = normal(5, 4), normal(5, 3)
    same(MultilinearMap(4, 3)(f, g), torch.einsum("bi,bk->bik", f, g).flatten(1))


def test_the_randomised_map_keeps_inner_products_in_expectation():
    torch.manual_seed(0)
    f, g = normal(2, 4), normal(2, 3)
    joint = RandomisedMap(4, 3, 400_000).double()
    T = joint(f, g)
    torch.testing.assert_close(T @ T.T, (f @ f.T) * (g @ g.T), rtol=0.05, atol=0.05)
    assert {name for name, _ in joint.named_buffers()} == {"R_f", "R_g"}, "checkpoints keep them"
    assert not list(joint.parameters()), "and nothing learns them"


def test_the_map_is_randomised_where_the_product_would_be_too_wide():
    plain = build("cdan")
    width = plain.pool.width * CLASSES
    assert isinstance(plain.joint, MultilinearMap)
    assert plain.discriminator[0].in_features == width
    assert isinstance(build("cdan", widest_product=width).joint, MultilinearMap)
    random = build("cdan", widest_product=width - 1, random_width=20)
    assert isinstance(random.joint, RandomisedMap)
    assert random.discriminator[0].in_features == 20


def test_sure_predictions_count_more_and_each_side_counts_as_much_as_the_other():
    method, batch = build("cdan"), make_batch()
    H = torch.rand(len(batch.images), dtype=torch.float64)
    counts = method.counts(H, batch)
    source, target = batch.split(counts)
    same((source.mean(), target.mean()), (source.new_ones(()), target.new_ones(())))
    same(source / source[0], (1 + torch.exp(-H))[: batch.num_labelled] / (1 + torch.exp(-H[0])))
    assert counts[: batch.num_labelled].argmax() == H[: batch.num_labelled].argmin()
    assert build("cdan", entropy_conditioning=False).counts(H, batch) is None


@pytest.mark.parametrize("conditioned", [True, False], ids=["CDAN+E", "CDAN"])
@pytest.mark.parametrize("widest", [4096, 0], ids=["product", "random"])
def test_it_descends_along_the_papers_gradient_with_only_the_reversal_ramped(conditioned, widest):
    ramp, weight = 0.3, 0.7
    options = {"entropy_conditioning": conditioned, "widest_product": widest, "random_width": 20}
    method, batch = build("cdan", adversary_weight=weight, **options), make_batch()
    losses = method.losses(batch)
    assert method.ramped == {"adversary"}
    total = losses["classification"] + losses["domain"] + ramp * losses["adversary"]

    f = method.pool(method.backbone(batch.images))
    scores = method.classifier(f)
    T = method.joint(f, scores.softmax(dim=1).detach())
    w = 1 + torch.exp(-entropy(scores)) if conditioned else torch.ones(len(f), dtype=f.dtype)
    norm = torch.cat([part.mean().detach().expand(len(part)) for part in batch.split(w)])
    E_D = domain_loss(method.discriminator(T), batch, w / norm)
    L_y = cross_entropy(scores[: batch.num_labelled], batch.labels)
    same((losses["domain"], losses["adversary"]), (E_D, E_D))
    learner = [*method.backbone.parameters(), *method.classifier.parameters()]
    same(gradients(total, learner), gradients(L_y - ramp * weight * E_D, learner))
    D = list(method.discriminator.parameters())
    same(gradients(total, D), gradients(E_D, D))


def test_inference_keeps_neither_map_nor_discriminator():
    method = build("cdan", widest_product=0).eval()
    images = make_batch().images
    before = method(images)
    method.drop_training_parts()
    assert torch.equal(method(images), before)
    assert {name.split(".")[0] for name in method.state_dict()} == {"backbone", "classifier"}

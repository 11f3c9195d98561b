"""MME: scores by prototypes, and the entropy that they raise and the features lower."""

import pytest
import torch
from torch.nn.functional import normalize

from afield.losses import entropy
from support.adversarial import build, gradients, make_batch
from support.comparing import same


@pytest.mark.parametrize("hidden", [(), (6,)])
def test_mme_scores_are_similarities_to_prototypes_over_the_temperature(hidden):
    method = build("mme", hidden=hidden, temperature=0.05).eval()
    vectors = torch.randn(5, method.pool.width, dtype=torch.float64)
    f = method.classifier.embed(vectors)
    expected = normalize(f) @ method.classifier[-1].weight.T / 0.05
    same(method.classifier(vectors), expected)
    same(method.classifier.compare(7 * f), expected)
    assert method.classifier[-1].bias is None


@pytest.mark.parametrize("hidden", [(), (6,)])
def test_mmes_prototypes_raise_the_targets_entropy_and_its_features_lower_it(hidden):
    method, batch = build("mme", hidden=hidden, entropy_weight=0.4), make_batch()
    loss = method.losses(batch)["entropy"]
    scores = method.classifier(method.pool(method.backbone(batch.images)))
    if hidden:  # batch norm saw all domains in both
        assert len(method.classifier) == 5
    H = entropy(scores[batch.num_labelled :]).mean()
    same(loss, -0.4 * H)
    prototypes = [method.classifier[-1].weight]
    features = [p for name, p in method.named_parameters() if p is not prototypes[0]]
    same(gradients(loss, prototypes), gradients(-0.4 * H, prototypes))
    same(gradients(loss, features), gradients(0.4 * H, features))
    assert all(g.abs().sum() > 0 for g in gradients(loss, method.backbone.parameters()))


def test_mmes_entropy_is_raised_from_nothing_by_the_loop():
    assert build("mme").ramped == {"entropy"}
    assert build("mme").losses(make_batch()).keys() == {"classification", "entropy"}

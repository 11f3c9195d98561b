"""The variants that the research log tells of still train."""

from pathlib import Path

import pytest

IDEAS = Path(__file__).parents[1] / "benchmarks/ideas/far_ideas.py"
SETTINGS = [
    {"another": "joint"},
    {"another": "directions+joint", "memory": 0.9},
    {"another": "joint adversary"},
    {"another": "all domains"},
    {"another": "kernels", "aligned_feature": "f+"},
    {"mean_gate": True, "share": 0.6, "minus_trains": "FR"},
    {"prototypes_weight": 0.3, "confusion_weight": 0.3, "temperature": 0.1},
    {"ranked": "agreed", "guard": "equal"},
    {"ranked": "target"},
    {"two_adversaries": True},
]


@pytest.mark.parametrize("method", ["FARIdeas", "FARPlusIdeas"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_an_idea_trains(train_toy, tmp_path, own_methods, method, settings):
    chosen = {f"method.{name}": value for name, value in settings.items()}
    run = train_toy(tmp_path / "run", f"{IDEAS}:{method}", 2, settings=chosen)
    assert run.step == 2


def test_strong_views_of_the_sources_train(train_toy, tmp_path, own_methods):
    run = train_toy(tmp_path / "run", f"{IDEAS}:FARPlusIdeas", 2, settings={"method.views_weight": 1.0})
    assert run.step == 2

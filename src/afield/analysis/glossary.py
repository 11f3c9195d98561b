"""What afield's words mean: those of a report, and those that only the documents use."""

from afield.config.selectors import MEANINGS, NEED_TARGET

GLOSSARY = {
    "accuracy": "the share of test images whose class is predicted rightly.",
    "run": "one training, from a config and a seed, in a folder of its own.",
    "config": "all settings of a run. `afield config` prints it, each key with what it does.",
    "seed": "the number that everything random in a run follows from.",
    "method": "how a network is trained for a target: its parts and its losses. `afield methods` lists them.",
    "task": "what is to be learned: UDA or DG, from which sources, for which target.",
    "domain": "one way of taking pictures of the same classes: a camera, a hospital, a drawing style.",
    "source": "a domain whose labels are learned from. Its accuracy is measured on images held out from training.",
    "target": (
        "the domain to adapt to, or to be measured on. Its labels, where there are any, are not used in training; "
        "they only serve to measure."
    ),
    "UDA": "unsupervised domain adaptation: training sees the target's images, but not their labels.",
    "DG": "domain generalization: training sees no image of the target.",
    "step": "one update of the weights by one batch.",
    "evaluation": "a measurement of the network on test images, every so many steps and at the end of a run.",
    "selector": "the rule that says which of a run's evaluations counts.",
    "last": "the selector that takes the end of training: nothing is chosen.",
    "source-val": "the selector that takes the evaluation with the best mean accuracy on held-out source images.",
    "loss": "what training makes small; each is shown with its weight, as the mean since the evaluation before.",
    "losses of FAR": (
        "classification: the cross-entropy of the classifier on A+R+, with the sources' labels; aligned: the same on A "
        "alone; align: how far A differs between domains; domain: how badly the adversary tells the domains apart; "
        "dre: the dual ranking entropy, small if A+R+ is classified more surely than A, and A+R- less surely; "
        "prototypes: how far A+R+ is from the mean of its class in the other domains; experts: the cross-entropy of "
        "each source's own classifier; consistency: how far the classifier's predictions are from these classifiers'."
    ),
    "backbone": "the network that makes a map F of an image, such as resnet18.",
    "head, classifier": "the layers that make one score per class of a feature.",
    "F": "the map that the backbone makes of an image: one value per channel and position.",
    "gate": "a small network that gives the channels and positions of a map weights, and so selects from it.",
    "FA, FR": "the gates of FAR: FA selects A from F, and FR selects R+ from R.",
    "A": "the part of F that a gate selects to be the same in all domains: the aligned feature.",
    "R, R+, R-": "the rest of F, R = F - A; its part that helps to classify, which FAR restores; and what is left.",
    "A+R+": "the aligned feature with what is restored: what FAR classifies.",
    "A+R-": "the aligned feature with what is not restored. If restoration works, it classifies worse than A+R+.",
    "kept": "how large A is in relation to F. Near 0 the gate is closed.",
    "restored": "how large R+ is in relation to R.",
    "confusion": "how many images of each true class (row) are taken for each class (column).",
    "t-SNE": (
        "points in a plane, so placed that images with similar features are near each other. Distances between "
        "far points, and the axes, mean nothing."
    ),
    "activation map": (
        "where in the image a map is active: the sum of its channels' absolute values, of Euclidean norm 1."
    ),
    "feature divergence": (
        "how far the features of two domains lie apart: each channel's mean over positions is taken to be Gaussian in "
        "each domain, and the Kullback-Leibler divergences of both directions are averaged, then averaged over the "
        "channels. 0 means equal."
    ),
    "entropy": "how unsure a prediction is, in nats: 0 if one class has all the probability.",
    "multiply-adds": "multiplications with an addition each in products and convolutions, for one image.",
    "checkpoint": "the file with the network's weights after some step.",
}
"""The words of a report."""

_OF_DOCUMENTS = {
    "split": "the images of a domain that serve one purpose: training, validation or testing.",
    "neck": "fully connected layers at the end of the backbone; often there are none.",
    "alignment": "making features of different domains alike, so that what is learned in one holds in another.",
    "restoration": "giving back to A what helps to classify and was lost by alignment.",
    "adversary": "a classifier that learns to tell domains apart, while the features learn to make it fail.",
    "experts": "FAR's classifiers of single sources; training needs them, inference does not.",
    "ramp": "the rise of a loss's weight from 0 to its full value in the course of training.",
    "record": "what a run writes down about itself, one JSON object per line. Tables are made from records alone.",
    "preset": "settings that go together under a name: those that suit a data set, or that a method's name stands for.",
    "protocol": "data, task, targets and settings under a name. Only figures of one protocol can be compared.",
    "plan": "a TOML file that names a protocol, methods and seeds: what `afield bench` trains.",
    "oracle": "the selector that looks at the target's labels: a bound on what choosing can reach, never a result.",
    "calibration": "whether predictions of some confidence are right as often as they claim; ECE measures it.",
    "manifest": "a CSV or Parquet file that lists images, with domain, label and split of each.",
}
_OF_SELECTORS = {
    f"{name} (selector)" if name in GLOSSARY else name: f"the selector that takes {MEANINGS[name]}."
    for name in NEED_TARGET
}

ALL_WORDS = dict(sorted((GLOSSARY | _OF_DOCUMENTS | _OF_SELECTORS).items(), key=lambda entry: entry[0].casefold()))
"""Every word, in the order of the alphabet."""

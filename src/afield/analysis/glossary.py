"""What the words of a report mean."""

GLOSSARY = {
    "accuracy": "the share of test images whose class is predicted rightly.",
    "domain": "one way of taking pictures of the same classes: a camera, a hospital, a drawing style.",
    "source": "a domain whose labels are learned from. Its accuracy is measured on images held out from training.",
    "target": (
        "the domain to adapt to, or to be measured on. Its labels, where there are any, are not used in training; "
        "they only serve to measure."
    ),
    "UDA": "unsupervised domain adaptation: training sees the target's images, but not their labels.",
    "DG": "domain generalization: training sees no image of the target.",
    "selector": "the rule that says which of a run's evaluations counts.",
    "last": "the selector that takes the end of training: nothing is chosen.",
    "source-val": "the selector that takes the evaluation with the best mean accuracy on held-out source images.",
    "loss": "what training makes small; each is shown with its weight, as the mean since the evaluation before.",
    "F": "the map that the backbone makes of an image: one value per channel and position.",
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

"""One training step of a method, without the loop."""


def take_step(method, batch, descend):
    """All updates of a step, each handed to `descend`; the losses of all of them."""
    losses = {}
    for update in method.training_step(batch):
        descend(update)
        losses |= update
    return losses

"""How each part of a method learns: its rate, its weight decay and its optimiser.

Parameters that learn alike are one group, and groups of one kind of optimiser are one optimiser of torch; a descent
steps them all. Learning rates lie in one vector on the device, which one multiplication fills. So a descent is
operations on the device alone, which a CUDA graph can hold.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from afield.config.training import OptimiserName, TrainingOptions
from afield.errors import AfieldError, unknown
from afield.methods import Learning, Method
from afield.networks import bare_backbones, hold_still, let_go, stands_still

State = dict[str, dict[str, Tensor]]
"""What optimisers remember of every parameter, by its name."""


class Kind(NamedTuple):
    """What the parameters of a group have in common."""

    optimiser: OptimiserName
    rate: float
    """The group's learning rate, as a multiple of the config's."""
    weight_decay: float
    betas: tuple[float, float] | None
    """None where the optimiser has none."""


class Optimisers:
    """The parameters of a method that learn in its present phase, in groups, and what their optimisers remember.

    Those learn that ask for a gradient and have a rate above 0. What has a rate of 0 asks for none, and stands still,
    until `let_go`. `pretrained` says that the backbone starts from weights that someone has trained, and `recorded`
    that descents are to become part of a CUDA graph.
    """

    def __init__(
        self, method: Method, options: TrainingOptions, device: torch.device, *, pretrained: bool, recorded: bool
    ) -> None:
        kinds = kinds_of(method, options, pretrained)
        self.still = any(kind.rate == 0 for kind in kinds.values())
        """Whether a rate of 0 keeps something from learning."""
        still = {parameter for name, parameter in method.named_parameters() if kinds[name].rate == 0}
        # What never learns, and what stands still by the network's options, is not this phase's to let go.
        self._stilled = [parameter for parameter in still if parameter.requires_grad]
        for parameter in self._stilled:
            parameter.requires_grad_(False)
        self._held: list[nn.Module] = []
        for part in method.modules():
            own = set(part.parameters())
            if own and own <= still and not stands_still(part):
                hold_still(part)
                self._held.append(part)
        self.parameters = {name: p for name, p in method.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise AfieldError(f"nothing of method {type(method).__name__} learns: the rates of all its parts are 0")
        together = list(dict.fromkeys(kinds[name] for name in self.parameters))
        self.multiples = torch.tensor([kind.rate for kind in together], dtype=torch.float32, device=device)
        self.rates = torch.zeros_like(self.multiples)
        """The learning rate of each group, which holds a view of it."""
        groups: dict[OptimiserName, list[dict[str, Any]]] = {}
        for kind, lr in zip(together, self.rates, strict=True):
            members = [parameter for name, parameter in self.parameters.items() if kinds[name] == kind]
            group = {"params": members, "lr": lr, "weight_decay": kind.weight_decay}
            groups.setdefault(kind.optimiser, []).append(group | ({"betas": kind.betas} if kind.betas else {}))
        self.all = [make_optimiser(name, of_one, options, recorded) for name, of_one in groups.items()]
        for optimiser in self.all:
            # They would make their state when a parameter first has a gradient, which may be late. But a recorded step
            # must find it in its place, and the fused update of sgd wants momentum of all parameters or of none.
            for group in optimiser.param_groups:
                optimiser.state.update({p: fresh_state(group, p) for p in group["params"]})

    def set_rates(self, base: Tensor) -> None:
        """Set the learning rate of every group to its multiple of a rate on the device."""
        torch.mul(self.multiples, base, out=self.rates)

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for optimiser in self.all:
            optimiser.step()

    def let_go(self) -> None:
        """Let what stands still in this phase learn in the next, which has optimisers of its own."""
        for parameter in self._stilled:
            parameter.requires_grad_(True)
        for part in self._held:
            let_go(part)

    def state_dict(self) -> State:
        """What the optimisers remember, by the names of parameters, so that it does not depend on groups."""
        return {name: dict(state) for name, state in self._states().items()}

    def load_state_dict(self, stored: State) -> None:
        """Go on where `state_dict` stood. Raise a ValueError where that was of other parameters or optimisers."""
        own = self._states()
        if own.keys() != stored.keys():
            raise ValueError(f"the optimisers' states are of other parameters: {sorted(own.keys() ^ stored.keys())}")
        for name, state in own.items():
            found = {key: value.shape for key, value in stored[name].items()}
            if found != {key: value.shape for key, value in state.items()}:
                raise ValueError(f"the optimiser's state of {name} is of another kind: {found}")
            for key, value in state.items():
                # In place: what is stored may lie otherwise in memory than the parameter, as which a fused update
                # reads it.
                value.copy_(stored[name][key])

    def _states(self) -> State:
        states = {parameter: state for optimiser in self.all for parameter, state in optimiser.state.items()}
        return {name: states[parameter] for name, parameter in self.parameters.items() if states[parameter]}


def kinds_of(method: Method, options: TrainingOptions, pretrained: bool) -> dict[str, Kind]:
    """How each parameter of a method learns, by its name."""
    declared = method.learning()
    check_parts(method, declared)
    backbones: Sequence[nn.Module] = (bare_backbones(method) or (method.backbone,)) if pretrained else ()
    trained = {parameter for backbone in backbones for parameter in backbone.parameters()}
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in method.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    kinds: dict[str, Kind] = {}
    for name, parameter in method.named_parameters():
        learning = learning_of(names[parameter], declared)
        rate = learning.rate * (options.pretrained_rate if parameter in trained else 1)
        decay = options.weight_decay if learning.weight_decay is None else learning.weight_decay
        optimiser = learning.optimiser or options.optimiser
        kinds[name] = Kind(optimiser, rate, decay, None if optimiser == "sgd" else learning.betas or options.betas)
    return kinds


def learning_of(names: Sequence[str], declared: Mapping[str, Learning]) -> Learning:
    """What is declared of the smallest part that a parameter belongs to, by any of the parameter's names.

    >>> declared = {"heads": Learning(rate=10), "heads.1": Learning(rate=0)}
    >>> [learning_of([name], declared).rate for name in ("heads.0.bias", "heads.1.bias", "heads.10.bias", "backbone.0")]
    [10, 0, 10, 1.0]
    """
    parts = [part for part in declared if any(f"{name}.".startswith(f"{part}.") for name in names)]
    return declared[max(parts, key=len)] if parts else Learning()


def check_parts(method: Method, declared: Mapping[str, Learning]) -> None:
    """Raise unless the parts of which a method declares how they learn exist, and can learn like that."""
    name = type(method).__name__
    modules = dict(method.named_modules(remove_duplicate=False))
    known = {*modules, *dict(method.named_parameters(remove_duplicate=False))} - {""}
    for part, learning in declared.items():
        if part not in known:
            parts = [*dict(method.named_children()), *(p for p, _ in method.named_parameters(recurse=False))]
            raise AfieldError(
                f"method {name} declares how its part '{part}' learns, and has no such part; it has {', '.join(parts)}"
            )
        if learning.rate < 0 or (learning.weight_decay or 0) < 0:
            raise AfieldError(f"method {name} declares a rate or weight decay below 0 for its part '{part}'")
        if not all(0 <= beta < 1 for beta in learning.betas or ()):
            raise AfieldError(f"method {name} declares betas that are not between 0 and 1 for its part '{part}'")
        if learning.optimiser and learning.optimiser not in get_args(OptimiserName):
            raise unknown(f"optimiser of part '{part}' of method {name}", learning.optimiser, get_args(OptimiserName))


def make_optimiser(
    name: OptimiserName, groups: list[dict[str, Any]], options: TrainingOptions, recorded: bool
) -> torch.optim.Optimizer:
    """One of torch's optimisers over some groups, all parameters of a group in one kernel."""
    match name:
        case "sgd":
            return torch.optim.SGD(groups, momentum=options.momentum, nesterov=options.nesterov, fused=True)
        case "adam":
            return torch.optim.Adam(groups, capturable=recorded, fused=True)
        case "adamw":
            return torch.optim.AdamW(groups, capturable=recorded, fused=True)


def fresh_state(group: Mapping[str, Any], parameter: nn.Parameter) -> dict[str, Tensor]:
    """What an optimiser remembers of a parameter that it has not updated yet."""
    if "betas" in group:
        count = torch.zeros((), dtype=torch.float32, device=parameter.device)
        return {"step": count, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
    return {"momentum_buffer": torch.zeros_like(parameter)} if group["momentum"] else {}

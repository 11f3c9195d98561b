"""Records of runs made by hand, for tables."""

from afield.config.layers import resolve
from afield.config.options import validated
from afield.config.plan import PlanFile, plan_jobs
from afield.config.protocols import find_protocol
from afield.results.records import rewrite_records

TARGETS = find_protocol("digit5/small").targets
PLAN = {
    "protocols": ["pairs/sv-mt", "pairs/mt-mm", "rotated-mnist/domainbed"],
    "seeds": [0, 1],
    "caption": "Nothing\nwas searched.",
    "rows": [
        {"label": "source only", "method": "baseline"},
        {"label": "Ganin", "method": "dann-paper", "protocols": ["pairs/sv-mt", "pairs/mt-mm"]},
        {
            "label": "Ganin",
            "method": "dann",
            "protocols": ["rotated-mnist/domainbed"],
            "settings": {"training.lr": 0.1},
        },
        {"label": "Tzeng", "method": "adda", "protocols": ["pairs/sv-mt"]},
    ],
}
"""A plan of several protocols."""


def write_runs(path, *runs):
    """A file of records with these runs."""
    rewrite_records(path, [record for run in runs for record in run])
    return path


def make_run(method, target, seed, *accuracies, label=None, protocol="digit5/small", settings=None, **about):
    """A run's records; each accuracy (0 to 1) is an evaluation: of the target, or a pair of source and target."""
    data = find_protocol(protocol).data if protocol else "digits"
    layers = [{section: {key: value}} for (section, key), value in (settings or {}).items()]
    config = resolve(
        {"data": {"name": data}, "task": {"target": target}, "method": {"name": method}, "training": {"seed": seed}},
        *layers,
    ).as_dict()
    named = {"name": protocol, "version": 1} if protocol else {}
    counts = dict.fromkeys(TARGETS if data == "digit5" else ("uci", "street"), 9000 if data == "digit5" else 500)
    header = {"event": "run", "label": label or method, "config": config}
    header["protocol"] = {**named, "data": data, "checksum": "c0ffee", "test_images": counts, **about}
    if not protocol:
        del header["label"]
    pairs = [pair if isinstance(pair, tuple) else (0.5, pair) for pair in accuracies]
    lines = [
        {"event": "evaluation", "step": step, "sources": {"a": {"accuracy": source, "n": 10}},
         "target": {target: {"accuracy": accuracy, "n": 10}}}
        for step, (source, accuracy) in enumerate(pairs, start=1)
    ]  # fmt: skip
    return [header, *lines, {"event": "end", "step": len(lines), "seconds": 1.0}]


def jobs_of(**changes):
    """The jobs of the plan."""
    return plan_jobs(validated(PlanFile, "plan", {**PLAN, **changes}))


def record(job, accuracy, **about):
    """The records of a job's run that ends with an accuracy (0 to 1) on its target."""
    protocol = {"name": job.place.protocol, "version": job.place.version, "data": job.config.data.name}
    header = {
        "event": "run", "label": job.place.label, "config": job.config.as_dict(),
        "protocol": {**protocol, "checksum": "c0ffee", "test_images": {job.target: 10}, **about},
    }  # fmt: skip
    result = {"accuracy": accuracy, "n": 10}
    evaluation = {"event": "evaluation", "step": 1, "sources": {"a": result}, "target": {job.target: result}}
    return [header, evaluation, {"event": "end", "step": 1, "seconds": 1.0}]

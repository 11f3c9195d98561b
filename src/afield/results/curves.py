"""The numbers of an evaluation by name: the same names in TensorBoard, W&B, MLflow and a run's history."""

from afield.results.records import Record


def curves_of(evaluation: Record) -> dict[str, float]:
    """Every number that can be drawn over steps; a target without labels has no accuracy.

    >>> curves_of({"losses": {"align": 0.5}, "lr": 0.1, "adaptation_weight": 1.0, "sources": {}, "target": {}})
    {'loss/align': 0.5, 'schedule/lr': 0.1, 'schedule/adaptation': 1.0}
    """
    curves = {f"loss/{name}": value for name, value in evaluation["losses"].items()}
    curves |= {"schedule/lr": evaluation["lr"], "schedule/adaptation": evaluation["adaptation_weight"]}
    for group in ("sources", "target"):
        for domain, result in evaluation[group].items():
            curves[f"{group}/{domain}"] = result["accuracy"]
            curves |= {f"{group}-from/{domain}/{k}": v for k, v in result.get("views", {}).items()}
            curves |= {f"gates/{domain}/{k}": v for k, v in result.get("gates", {}).items()}
    for domain, said in evaluation.get("unlabelled", {}).items():
        curves |= {f"unlabelled/{domain}/{k}": v for k, v in said.items() if isinstance(v, float)}
    return {name: value for name, value in curves.items() if value is not None}

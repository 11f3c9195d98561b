"""Stored configs and records of earlier versions, converted to the present names."""

from typing import Any

POOLS = {"pool": "average", "pool2": "average2x2"}


def upgraded(config: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A stored config as this version writes it. One of this version, or a damaged one, comes back unchanged."""
    sections = [config.get(name) for name in ("data", "training", "network")] if isinstance(config, dict) else [None]
    if not all(isinstance(section, dict) for section in sections) or "name" not in config["data"]:
        return config
    if config["network"].get("pretrained") and "pretrained_rate" not in config["training"]:
        # A backbone learned at the rate of all other parts, which is not the option's default.
        config = {**config, "training": {**config["training"], "pretrained_rate": 1.0}}
    if isinstance(method := config.get("method"), dict) and (now := _of_now(method)) != method:
        config = {**config, "method": now}
    if "image_size" in config["data"]:
        return config
    data, training, network = dict(config["data"]), dict(config["training"]), dict(config["network"])
    data |= {
        "preset": data["name"] if data["name"] in ("digits", "digit5") else "",
        "image_size": 32,
        "augmentation": "digits" if training.pop("augment", True) else "none",
    }
    if data["name"] == "digit5":
        data["name"] = "digit5-padded"
    if "step" in training:
        training["execution"] = training.pop("step")
    if network.get("pool") in POOLS:
        network["pool"] = POOLS[network["pool"]]
    return {**config, "data": data, "training": training, "network": network}


def _of_now(method: dict[str, Any]) -> dict[str, Any]:
    """Options that FAR and the rungs before it did not have, at what was done then, which is not their default.

    One that is gone, `equal_shares`, was off unless someone asked for it.
    """
    then: dict[str, Any] = {"directions_weight": 1.0} if "align_weight" in method else {}
    if "dre_weight" in method:
        then |= {"prototypes_weight": 0.0, "dre_measure": "entropy", "minus_trains": "all"}
    gone = {"equal_shares"} if method.get("equal_shares") is False else set()
    return then | {name: value for name, value in method.items() if name not in gone}


def upgraded_record(record: dict[str, Any]) -> dict[str, Any]:
    """The same for one line of a file of records."""
    if "config" in record and (config := upgraded(record["config"])) is not record["config"]:
        record = {**record, "config": config}
        padded = config["data"]["name"] == "digit5-padded"
        if padded and isinstance(record.get("protocol"), dict) and record["protocol"].get("data") == "digit5":
            record["protocol"] = {**record["protocol"], "data": "digit5-padded"}
    if "oracle" in record:
        record = {**record, "target": record["oracle"]}
        del record["oracle"]
    return record


def upgraded_name(tensor: str) -> str:
    """The present name of a method's tensor: the classifiers of mcd, m3sda and dctn had a name of their own."""
    return f"classifier.{tensor.removeprefix('classifiers.')}" if tensor.startswith("classifiers.") else tensor

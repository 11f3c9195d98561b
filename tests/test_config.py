"""From what a user wrote to a valid config, or to one line that says what is wrong."""

import contextlib
import tomllib

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

import afield
from afield import AfieldError, list_methods
from afield.app.asked import asked_layers, check_early
from afield.config import cards
from afield.config.catalogue import find_entry
from afield.config.layers import by_section, completed, merge, parse_assignment, read_config, resolve
from afield.config.plan import PlanFile, plan_jobs
from afield.config.upgrade import upgraded, upgraded_record
from afield.methods import Method, register_method
from afield.methods import registry as method_registry
from afield.methods.create import create_method


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"training": {"setps": 3}}, "unknown config key 'training.setps'; did you mean 'training.steps'?"),
        ({"method": {"align_wieght": 0.3}}, "unknown config key 'method.align_wieght'; did you mean 'method.align_w"),
        ({"method": {"name": "baseline", "align_weight": 0.3}}, "unknown config key 'method.align_weight'"),
        ({"network": {"witdh": 8}}, "unknown config key 'network.witdh'; did you mean 'network.width'?"),
        ({"task": {"tagret": "street"}}, "did you mean 'task.target'?"),
        ({"data": {"nam": "digits"}}, "did you mean 'data.name'?"),
        ({"trainig": {"steps": 3}}, "unknown config section 'trainig'; did you mean 'training'?"),
        ({"steps": 3}, "unknown config section 'steps'"),
        ({"training": 3}, "config section 'training' must be a table of keys, not 3"),
        ({"method": {"name": "faar"}}, "unknown method 'faar'; did you mean 'far'?"),
        ({"method": {"name": "far-without-der"}}, "did you mean 'far-without-dre'?"),
        ({"method": {"name": 3}}, "config key 'method.name'"),
        ({"network": {"pretrained": True}}, "config key 'network': pretrained needs a timm backbone"),
        ({"training": {"steps": 5, "warmup_steps": 5}}, r"warmup_steps \(5\) must be smaller than steps \(5\)"),
        ({"training": {"schedule": "cosin"}}, "'training.schedule': .*'cosine', .* or 'steps', not \"cosin\""),
        ({"task": {"kind": "ada"}}, "config key 'task.kind': .*'uda' or 'dg'"),
        ({"training": {"lr": 0}}, "config key 'training.lr'"),
        ({"training": {"lr": float("nan")}}, "config key 'training.lr'"),
        ({"training": {"lr": float("inf")}}, "config key 'training.lr'"),
        ({"method": {"align_weight": float("inf")}}, "config key 'method.align_weight'"),
        ({"training": {"batch_size": 1}}, "config key 'training.batch_size'"),
        ({"training": {"seed": -1}}, "config key 'training.seed'"),
        ({"network": {"hidden": [16, 0]}}, "config key 'network.hidden.1'"),
        ({"network": {"dropout": 1.0}}, "config key 'network.dropout'"),
    ],
)
def test_a_bad_config_is_one_line_that_names_the_key(values, message):
    with pytest.raises(AfieldError, match=message) as caught:
        resolve({"task": {"target": "street"}}, values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.steps", "3"), ("training.steps", 1.5), ("training.steps", 3.0), ("training.steps", True),
        ("training.steps", [3]), ("training.lr", "0.1"), ("training.lr", True), ("data.skip_bad", 1),
        ("data.skip_bad", "true"), ("training.precision", 16), ("network.hidden", 16), ("network.hidden", "16"),
        ("network.hidden", [1.5]), ("network.backbone", 18), ("method.experts", 0), ("method.align_weight", "0.3"),
        ("task.target", 3), ("task.sources", "mnist"), ("task.sources", [1]), ("data.name", ["digits"]),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_not_converted(key, value):
    section, name = key.split(".")
    with pytest.raises(AfieldError, match=f"config key '{key}"):
        resolve({section: {name: value}})


def test_a_whole_number_will_do_for_a_real_one():
    assert resolve({"training": {"lr": 1}}).training.lr == 1.0


def test_later_layers_outrank_earlier_ones(tmp_path):
    defaults = resolve({"method": {"name": "baseline"}})
    assert (defaults.training.momentum, defaults.training.ramp) == (0.9, "dann")
    assert (defaults.training.steps, defaults.network.width) == (600, 24), "the data preset outranks the defaults"
    assert resolve({"method": {"name": "far-paper"}}).training.ramp == "constant", "the method preset comes after it"
    file = tmp_path / "run.toml"
    written = {"method": {"name": "far-paper"}, "network": {"width": 40}, "training": {"steps": 5, "lr": 5}}
    file.write_text(tomli_w.dumps(written))
    named = {"training": {"steps": 6, "seed": 6}}
    config = resolve(read_config(file), named, by_section({"training.seed": 8}))
    assert config.method_name == "far-paper"
    assert (config.network.pool, config.network.width) == ("average", 40), "method preset, file, then data preset"
    assert (config.training.lr, config.training.steps, config.training.seed) == (5.0, 6, 8)


def test_merge_leaves_its_layers_alone():
    layers = [{"training": {"steps": 1}}, {"training": {"steps": 2}}]
    assert merge(*layers)["training"] == {"steps": 2}
    assert layers == [{"training": {"steps": 1}}, {"training": {"steps": 2}}]


@pytest.mark.parametrize(
    ("given", "stored"), [("FAR", "far"), ("Far-Without-DRE", "far-without-dre"), ("Far+", "far+")]
)
def test_names_of_methods_and_tasks_are_taken_in_any_case_and_stored_in_one(given, stored):
    config = resolve({"method": {"name": given}, "task": {"kind": "UDA", "target": "street"}})
    assert (config.method_name, config.task.kind) == (stored, "uda")
    assert config == resolve({"method": {"name": stored}, "task": {"kind": "uda", "target": "street"}})
    assert config.as_dict()["method"]["name"] == find_entry(given).name == stored
    on_top = resolve({"method": {"name": stored, "align_weight": 0.25}}, {"method": {"name": given}})
    assert on_top.method.align_weight == 0.25, "the same method in another case does not drop its options"


def test_a_plan_takes_methods_in_any_case():
    wanted, given = (PlanFile(protocol="digits/embedded", methods=(name,), seeds=(0,)) for name in ("far", "FAR"))
    assert [job.identity for job in plan_jobs(given)] == [job.identity for job in plan_jobs(wanted)]
    row = {"label": "Far", "method": "far", "settings": {"method.align_weight": 0.1}}
    with pytest.raises(AfieldError, match="row 'Far': that is a method's name"):
        plan_jobs(PlanFile(protocol="digits/embedded", seeds=(0,), rows=(row,)))


def test_a_wrong_name_in_capitals_has_a_nearest_spelling_too():
    with pytest.raises(AfieldError, match="unknown method 'FARR'; did you mean 'far'"):
        resolve({"method": {"name": "FARR"}})


@pytest.mark.parametrize("name", list_methods())
def test_every_method_resolves_and_its_config_survives_a_file(tmp_path, name):
    given = {"method": {"name": name}, "task": {"target": "street", "sources": ["mnist", "uci"]}}
    config = resolve(given, {"network": {"hidden": [16, 8]}, "training": {"lr": 0.1}})
    file = tmp_path / "config.toml"
    file.write_text(config.as_toml(), "utf-8")
    assert resolve(read_config(file)) == config
    assert tomllib.loads(config.as_toml())["method"]["name"] == name
    for section, fixed in find_entry(name).fixed.items():
        values = config.as_dict()[section]
        assert all(values[key] == value for key, value in fixed.items() if key not in ("hidden", "lr")), section


@pytest.mark.parametrize(
    ("network", "pretrained"),
    [
        ({}, True),
        ({"backbone": "resnet50"}, True),
        ({"pretrained": False}, False),
        ({"backbone": "digit"}, False),
        ({"weights": "mine.pt"}, False),
        ({"backbone": "resnet50", "weights": "mine.pt"}, False),
        ({"weights": "mine.pt", "pretrained": False}, False),
        ({"weights": ""}, True),
    ],
)
def test_the_weights_that_a_preset_downloads_give_way_to_what_the_user_says(network, pretrained):
    made = resolve({"data": {"name": "x/", "preset": "photos"}, "network": network}).network
    assert made.pretrained == pretrained
    assert made.weights == network.get("weights", "")


@pytest.mark.parametrize(
    ("network", "message"),
    [({"weights": "mine.pt"}, "choose one"), ({"backbone": "digit"}, "needs a timm backbone")],
)
def test_downloaded_weights_that_the_user_asks_for_do_not_give_way(network, message):
    for preset in ("photos", "small"):
        with pytest.raises(AfieldError, match=message):
            resolve({"data": {"preset": preset}, "network": {"backbone": "resnet18", "pretrained": True, **network}})


def test_values_with_names_of_their_own_rank_above_a_file_and_below_single_keys(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[training]\nlr = 1\nbatch_size = 8\ndevice = "cuda"\n[network]\nbackbone = "resnet50"')
    named = {"lr": 2.0, "batch_size": 9, "backbone": "resnet34", "pretrained": False, "weights": tmp_path / "w.pt"}
    config = resolve(*asked_layers(file, {"training.lr": 3, "network": {"backbone": "resnet26"}}, **named, device=None))
    assert (config.training.lr, config.training.batch_size, config.training.device) == (3.0, 9, "cuda")
    assert (config.network.backbone, config.network.weights) == ("resnet26", str(tmp_path / "w.pt"))


def test_a_file_of_weights_is_looked_for_before_the_data_and_stored_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.pt").touch()
    layers = asked_layers(None, None, data="nowhere/", weights="~/mine.pt")
    assert check_early(layers, []).network.weights == "~/mine.pt"
    for path in ("~/other.pt", "~", "~nobody-of-that-name/mine.pt", "a\0b"):
        with pytest.raises(AfieldError, match=r"cannot read network\.weights: ") as caught:
            afield.train("nowhere/", out=tmp_path / "run", weights=path)
        assert path in str(caught.value)
    resolved = resolve(*layers)
    assert check_early([], [resolved.as_dict() | {"network": {"weights": "gone.pt"}}]), "a checkpoint has its own"


def test_a_backbone_is_looked_for_before_the_data(tmp_path):
    with pytest.raises(AfieldError, match="unknown backbone 'restnet18'; did you mean 'resnet18'"):
        afield.train("nowhere/", out=tmp_path / "run", backbone="restnet18")


def test_a_stored_config_is_completed_by_defaults_and_not_by_todays_presets():
    stored = resolve({"method": {"name": "far-paper"}, "task": {"target": "street"}}).as_dict()
    assert completed(stored) == stored
    assert stored["training"].pop("steps") == 600
    assert stored["training"].pop("ramp") == "constant"
    assert stored["method"].pop("reduction") == 8
    whole = completed(stored)
    assert (whole["training"]["steps"], whole["training"]["ramp"], whole["method"]["reduction"]) == (1000, "dann", 8)


def test_a_stored_config_from_before_backbones_learned_slowly_says_that_its_own_did_not():
    stored = resolve({"task": {"target": "street"}}).as_dict()
    assert upgraded(stored) is stored
    del stored["training"]["pretrained_rate"]
    assert upgraded(stored) is stored, "without pretrained weights there is no difference"
    stored["network"] |= {"backbone": "resnet18", "pretrained": True}
    assert upgraded(stored)["training"]["pretrained_rate"] == 1.0
    assert upgraded(upgraded(stored)) == upgraded(stored)


def test_a_stored_config_says_what_far_did_before_it_had_an_option():
    stored = resolve({"method": {"name": "far"}, "task": {"target": "street"}}).as_dict()
    assert upgraded(stored) is stored
    then = {"prototypes_weight": 0.0, "directions_weight": 1.0, "dre_measure": "entropy", "minus_trains": "all"}
    of_then = {name: value for name, value in stored["method"].items() if name not in then}
    method = upgraded(stored | {"method": of_then})["method"]
    assert {name: method[name] for name in then} == then
    assert upgraded(stored | {"method": {"name": "dann"}})["method"] == {"name": "dann"}
    assert upgraded(stored | {"method": stored["method"] | {"equal_shares": False}}) == stored


def test_a_record_of_resized_digits_stays_one_whatever_option_it_lacks():
    config = resolve({"data": {"name": "digit5"}, "method": {"name": "far"}, "task": {"target": "sv"}}).as_dict()
    del config["method"]["prototypes_weight"]
    record = upgraded_record({"event": "run", "config": config, "protocol": {"data": "digit5"}})
    assert (record["config"]["method"]["prototypes_weight"], record["protocol"]["data"]) == (0.0, "digit5")


def test_a_method_is_what_its_name_says_or_an_error():
    contradiction = r"'far-without-dre' means method\.dre = none, not dual"
    with pytest.raises(AfieldError, match=contradiction):
        resolve({"method": {"name": "far-without-dre", "dre": "dual"}})
    with pytest.raises(AfieldError, match=contradiction):
        create_method("far-without-dre", num_classes=3, num_sources=2, dre="dual")
    assert resolve({"method": {"name": "far-without-dre", "dre": "none"}}).method.dre == "none"


@pytest.mark.parametrize("new", list_methods())
@pytest.mark.parametrize("old", ["baseline", "far", "far-paper", "far-without-dre"])
def test_a_stored_config_with_another_method_on_top_is_that_method(old, new):
    others = {"training": {"clip_norm": 0.5}, "task": {"target": "uci"}}  # what no preset sets
    stored = resolve({"method": {"name": old}, **others}).as_dict()
    assert resolve(stored, {"method": {"name": new}}) == resolve({"method": {"name": new}, **others})
    flat = resolve(stored, {"method": {"name": new}}, {"network": {"pool": "flatten"}})
    assert flat.network.pool == "flatten", "what is said on top counts"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training.steps=5", {"training.steps": 5}),
        ("training.lr = 0.1", {"training.lr": 0.1}),
        ("data.skip_bad=false", {"data.skip_bad": False}),
        ("training.device=cpu", {"training.device": "cpu"}),
        ('task.target="street"', {"task.target": "street"}),
        ('task.sources=["mnist", "uci"]', {"task.sources": ["mnist", "uci"]}),
        ("network.hidden=[]", {"network.hidden": []}),
        ("data.name=a=b", {"data.name": "a=b"}),
    ],
)
def test_an_assignment_is_read_as_toml_or_as_a_bare_word(text, expected):
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["training.steps", "steps=5", "", "=5", "5"])
def test_what_is_no_assignment_is_an_error(text):
    with pytest.raises(AfieldError, match=r"a setting is written section\.key=value"):
        parse_assignment(text)


@given(st.text())
def test_any_text_is_an_assignment_or_an_error(text):
    with contextlib.suppress(AfieldError):
        assert len(parse_assignment(text)) == 1


def test_a_config_file_that_cannot_be_read_is_an_error(tmp_path):
    for content in (b"steps = ", b"[training\n", b"\xff\xfe", b"a = 1\na = 2"):
        file = tmp_path / "bad.toml"
        file.write_bytes(content)
        with pytest.raises(AfieldError, match=r"bad\.toml"):
            read_config(file)
    for path in (tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(AfieldError, match="cannot read config file"):
            read_config(path)


def test_a_config_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "my.toml").write_bytes(b"\xef\xbb\xbf[training]\nsteps = 3\n")
    assert read_config(tmp_path / "my.toml") == {"training": {"steps": 3}}


def test_a_setting_needs_a_section(train_toy, tmp_path):
    with pytest.raises(AfieldError, match=r"section\.key, not 'steps'"):
        train_toy(tmp_path / "run", settings={"steps": 3})


@pytest.fixture
def needy():
    """A method that cannot do without target images, known for one test."""

    @register_method("needy", summary="wants a target", reference="none")
    class Needy(Method):
        needs_target = True

    yield Needy
    del method_registry._methods["needy"], cards._registered["needy"]


def test_a_method_that_needs_a_target_is_refused_in_a_dg_task_before_anything_is_written(needy, train_toy, tmp_path):
    with pytest.raises(AfieldError, match="method 'needy' needs target images in training, which a dg task"):
        train_toy(tmp_path / "run", "needy", task="dg")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": ["day"]}, "'far' needs at least 2 source domains, not 1"),
        ({"sources": ["day", "night"]}, "among the sources"),
        ({"target": "nihgt"}, "did you mean 'night'"),
        ({"method": "fra"}, "did you mean 'far'"),
        ({"steps": 0}, "training.steps"),
        ({"settings": {"network.backbone": "vit_small_patch32_224"}}, "does not take images of 16 x 16"),
        ({"selector": "oracle"}, "never chosen by 'oracle'"),
        ({"resume": True}, "there is no run to resume"),
        ({"resume": True, "overwrite": True}, "exclude each other"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(train_toy, tmp_path, options, message):
    with pytest.raises(AfieldError, match=message):
        train_toy(tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_no_text_is_an_error_under_another_name_too():
    with pytest.raises(AfieldError, match=r"'method\.name': must be a method's name, not 3"):
        resolve({"method": {"name": 3}}, {"method": {"name": "far"}})

"""How a method that is not part of afield is named, registered and found, and what is said if it cannot be."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import afield
from afield import AfieldError
from afield.bench.worker import Failed, attempt_sent
from afield.config import cards
from afield.config.catalogue import find_entry
from afield.config.outside import import_method, is_reference
from afield.config.plan import PlanFile, plan_jobs
from afield.methods.registry import name_of
from afield.training.processes import pack, unpack
from support.outside import forget, install, write_file, write_package

HEAD = "import afield\n\n"
REGISTERED = "@afield.register_method('{name}', summary='', reference='')\nclass {of}(afield.Method):\n    pass\n\n"
BUILD = {"num_classes": 2, "num_sources": 2, "network": {"width": 8}}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, own_methods):
    """A folder to stand in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("mine.py", True), ("./mine", True), ("a/mine.py:x", True), ("package.module:Name", True), ("~/mine.py", True),
        ("far", False), ("far+", False), ("package.module", False), ("mean-matching", False),
    ],
)  # fmt: skip
def test_a_reference_has_a_path_or_a_colon(text, answer):
    assert is_reference(text) == answer


def test_a_file_is_executed_again_only_if_it_has_changed():
    file = Path("mine.py")
    file.write_text(HEAD + REGISTERED.format(name="one", of="Mine"), "utf-8")
    assert [import_method(given) for given in ("mine.py", "./mine.py:Mine", str(file.resolve()) + ":ONE")] == [
        "one"
    ] * 3
    first = name_of("mine.py"), sys.modules[find_entry("one").card.origin.module]
    assert (name_of("./mine.py"), sys.modules[find_entry("one").card.origin.module]) == first
    file.write_text(HEAD + REGISTERED.format(name="two", of="Mine"), "utf-8")
    assert import_method("mine.py") == "two"
    assert "one" not in afield.list_methods(), "a file's old names are forgotten"


def test_a_file_imports_what_lies_beside_it_and_leaves_the_path_as_it_was():
    Path("folder").mkdir()
    Path("folder/some_package_helper.py").write_text("import afield\n\nclass Base(afield.Method):\n    pass\n", "utf-8")
    text = REGISTERED.format(name="helped", of="Mine").replace("afield.Method", "Base")
    Path("folder/mine.py").write_text(f"from some_package_helper import Base\n{HEAD}{text}", "utf-8")
    path = list(sys.path)
    assert import_method("folder/mine.py") == "helped"
    assert sys.path == path


def test_a_method_is_given_by_its_class_too():
    @afield.register_method("mine", summary="", reference="")
    class Mine(afield.Method):
        pass

    assert isinstance(afield.create_method(Mine, **BUILD), Mine)
    Other = type("Other", (Mine,), {})
    with pytest.raises(AfieldError, match=r"Other is not a registered method: decorate a subclass of afield\.Method"):
        afield.create_method(Other, **BUILD)
    with pytest.raises(AfieldError, match="3 is not a registered method"):
        afield.create_method(3, **BUILD)


ONE, TWO = REGISTERED.format(name="one", of="A"), REGISTERED.format(name="two", of="B")
MISTAKES = [
    ("x = (1,\n", "mine.py", r"^mine\.py, line 1: SyntaxError: '\(' was never closed$"),
    ("\n\ndef f():\n    return 1 / 0\n\nf()\n", "mine.py", r"^mine\.py, line 4: ZeroDivisionError: division by zero$"),
    ("import nowhere_to_be\n", "mine.py", r"^mine\.py, line 1: ModuleNotFoundError: No module named 'nowhere_to_be'$"),
    ("import sys\nsys.exit('bye')\n", "mine.py", r"^mine\.py, line 2: SystemExit: bye$"),
    ("\0", "mine.py", r"^mine\.py(, line 1)?: (ValueError|SyntaxError)"),
    ("raise ValueError('a\\nb')\n", "mine.py", r"^mine\.py, line 1: ValueError: a b$"),
    ("class Mine: pass\n", "mine.py", r"^mine\.py registers no method: decorate"),
    ("", "none.py", r"^there is no file none\.py to take a method from$"),
    ("", "./none", r"^a file with a method is a Python file, such as \./mine\.py, not \./none$"),
    ("", "folder/", "^folder/ is a folder, not a file with a method$"),
    (ONE.replace("one", "far"), "mine.py", r"^mine\.py, line 3: 'far' is the name of one of afield's own methods"),
    (ONE.replace("one", "FAR-Conv"), "mine.py", "'FAR-Conv' is the name of one of afield's own methods"),
    (ONE.replace("one", "a/b"), "mine.py", r"line 3: a method's name is letters, .* not 'a/b'$"),
    (
        ONE.replace("    pass", "    Options = dict"),
        "mine.py",
        "line 3: the Options of method 'one' are not a subclass",
    ),
    (ONE + TWO, "./mine.py", r"^\./mine\.py registers several methods, one, two: name one, such as \./mine\.py:one$"),
    (ONE, "mine.py:noe", r"^unknown method of mine\.py 'noe'; did you mean 'one'\?$"),
    (ONE + "class B: pass\n", "mine.py:B", r"^B of mine\.py is not a method: decorate"),
    ("", "no_such.module:Name", r"^no module named 'no_such'; a file is named by its path, \./mine\.py$"),
    ("", "afield.no_such:Name", r"^no module named 'afield\.no_such'; a file is named"),
    ("", "json:loads", "^loads of json is not a method: decorate"),
    ("", "json:Name", "^json has no method Name: decorate"),
    ("", "json:", r"^a method is a name, \./mine\.py or package\.module:Name, not 'json:'$"),
    ("", "a b:Name", "^a method is a name, .* not 'a b:Name'$"),
]


@pytest.mark.parametrize(("text", "given", "message"), MISTAKES)
def test_what_cannot_be_imported_is_one_line(text, given, message):
    Path("folder").mkdir()
    Path("mine.py").write_text(HEAD + text if text.startswith("@") else text, "utf-8")
    with pytest.raises(AfieldError, match=message) as caught:
        import_method(given)
    assert "\n" not in str(caught.value)
    assert (
        not [name for name in sys.modules if name.startswith(cards.FILE_MODULE)]
        or "registers several" in message
        or ":" in given
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "\nimport torch.nowhere\n",
            r"^cannot import some_package\.mine: mine\.py, line 2: ModuleNotFoundError: No module",
        ),
        ("\nx = = 1\n", r"^cannot import some_package\.mine: mine\.py, line 2: SyntaxError: invalid syntax$"),
        ("raise OSError(2, 'gone')\n", r"^cannot import some_package\.mine: mine\.py, line 1: FileNotFoundError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(home, monkeypatch, text, message):
    monkeypatch.syspath_prepend(str(home))
    with pytest.raises(AfieldError, match=message):
        import_method(write_package(home, text=text))


def test_a_module_may_hand_on_the_class_of_another(home, monkeypatch):
    monkeypatch.syspath_prepend(str(home))
    write_package(home)
    (home / "some_package/__init__.py").write_text("from some_package.mine import Mine as Ours\n", "utf-8")
    assert import_method("some_package:Ours") == import_method("some_package.mine:FROM-module") == "from-module"


def test_two_files_cannot_register_one_name_and_one_file_can_do_so_again():
    write_file(Path("a/mine.py"), "same")
    write_file(Path("b/mine.py"), "Same")
    import_method("a/mine.py")
    with pytest.raises(
        AfieldError, match=r"b/mine\.py, line 13: 'Same' is already the name of the method in .*a/mine\.py"
    ):
        import_method("b/mine.py")
    Path("a/mine.py").write_text(Path("a/mine.py").read_text("utf-8") + "# changed\n", "utf-8")
    assert import_method("a/mine.py") == "same"


def test_a_plan_names_methods_by_reference_and_no_row_is_called_like_one():
    write_file(Path("mine.py"))
    plan = {"protocol": "digits/embedded", "seeds": (0,), "targets": ("uci",)}
    row = {"label": "weak", "method": "mine.py", "settings": {"method.weight": 0.1}}
    by_file = plan_jobs(PlanFile(**plan, methods=("mine.py",), rows=(row,)))
    by_name = plan_jobs(PlanFile(**plan, methods=("FROM-file",), rows=({**row, "method": "from-file"},)))
    assert [job.place.label for job in by_file] == ["from-file", "weak"]
    assert [job.identity for job in by_file] == [job.identity for job in by_name]
    with pytest.raises(AfieldError, match="row 'from-file': that is a method's name"):
        plan_jobs(PlanFile(**plan, methods=("far",), rows=({**row, "label": "from-file"},)))


def test_another_process_runs_the_text_that_this_one_ran():
    write_file(Path("mine.py"))
    (job,) = plan_jobs(PlanFile(protocol="digits/embedded", seeds=(0,), targets=("uci",), methods=("mine.py",)))
    parcel = pack((job, Path("run")), "from-file")
    forget()
    Path("mine.py").write_text("raise RuntimeError('edited meanwhile')\n", "utf-8")
    other, _ = unpack(parcel)
    assert other.identity == job.identity
    assert find_entry("from-file").origin == "mine.py"


def test_a_method_that_another_process_cannot_import_is_why_a_run_failed(home, monkeypatch):
    monkeypatch.syspath_prepend(str(home))
    write_package(home)
    name = import_method("some_package.mine:Mine")
    parcel = pack("job", name)
    forget()
    (home / "some_package/mine.py").unlink()
    assert attempt_sent(parcel) == Failed("no module named 'some_package.mine'; a file is named by its path, ./mine.py")


def test_what_cannot_be_sent_is_said_to_belong_into_a_file():
    @afield.register_method("mine", summary="", reference="")
    class Mine(afield.Method):
        generator = (number for number in range(3))

    with pytest.raises(
        AfieldError, match="method 'mine' cannot be sent to another process; in a file it can: TypeError"
    ):
        pack("job", "mine")


# Calls the command line with the words that follow, then says whether torch was imported.
CODE = """
import sys
from afield.app.cli import main
try:
    main()
finally:
    print('torch' in sys.modules, file=sys.stderr)
"""


def test_installed_methods_are_listed_without_importing_them_even_if_one_is_broken(home, monkeypatch):
    write_package(home, text="raise RuntimeError('broken')\n")
    install(home, "some-plugin", "from-module = some_package.mine:Mine\nfar = some_package.mine:Mine")
    install(home, "broken-plugin", "no value")
    (home / "empty-1.0.dist-info").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(home), prepend=":")
    monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", "__all__")  # pydantic itself stumbles over a broken description
    for words in (["methods"], ["methods", "--json"]):
        done = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True, check=True)
        assert done.stderr.strip() == "False"
        if words[1:]:
            listed = {entry["name"]: entry for entry in json.loads(done.stdout)}
            assert listed["from-module"]["file"] == "some_package.mine:Mine"
            assert listed["far"]["file"] == "afield/methods/far.py"
        else:
            assert "from-module" in done.stdout
            assert "from the package some-plugin" in done.stdout


def test_a_broken_package_is_one_line_that_names_it(home, monkeypatch):
    monkeypatch.syspath_prepend(str(home))
    write_package(home, text="raise RuntimeError('broken')\n")
    write_package(home, "other_package", "other")
    value = "other_package.mine:Mine"
    install(
        home, "some-plugin", f"broken = some_package.mine:Mine\nfalse = {value}\nno-module = mine.py\ntwice = {value}"
    )
    install(home, "other-plugin", "twice = some_package.mine:Mine")
    expected = {
        "Broken": "method 'broken' of the package some-plugin: cannot import some_package.mine: mine.py, line 1: "
        "RuntimeError: broken",
        "false": "the package some-plugin names its method 'false', but registers it as 'other'",
        "no-module": "method 'no-module' of the package some-plugin: a method is a name, ./mine.py or "
        "package.module:Name, not 'mine.py:'",
    }
    for name, message in expected.items():
        with pytest.raises(AfieldError) as caught:
            find_entry(name)
        assert str(caught.value) == message
    with pytest.raises(
        AfieldError, match="'twice' is in several packages: other-plugin, some-plugin; name one, such as"
    ):
        find_entry("twice")
    assert {"broken", "false", "twice"} <= set(afield.list_methods())


@pytest.mark.parametrize(
    ("options", "body", "message"),
    [
        ("name: float = 1.0", "", "an option of method 'x' cannot be called name"),
        ("", "ramped = 'distance'", "declares as ramped is no set of names"),
        ("", "training_only = ['part']", "declares as training_only is no set of names"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_when_it_is_registered(options, body, message):
    class Options(afield.MethodOptions):
        __annotations__ = {"name": float} if options else {}

    declared = {"Options": Options}
    exec(body, {}, declared)
    method = type("X", (afield.Method,), declared)
    with pytest.raises(AfieldError, match=message):
        afield.register_method("x", summary="", reference="")(method)


def test_an_impossible_default_of_an_option_is_found_before_training():
    from pydantic import Field

    class Options(afield.MethodOptions):
        weight: float = Field(-1.0, ge=0)

    afield.register_method("x", summary="", reference="")(type("X", (afield.Method,), {"Options": Options}))
    with pytest.raises(AfieldError, match=r"method.weight.*greater than or equal to 0"):
        afield.create_method("x", **BUILD)

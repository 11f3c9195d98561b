"""What a shell offers when Tab is pressed."""

import pytest

from afield.config.protocols import protocols


@pytest.fixture
def complete(call, monkeypatch):
    """What is offered for the last word, asked for as the scripts do that --show-completion prints."""

    def offered(words):
        monkeypatch.setenv("_AFIELD_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        code, printed, errors = call()
        assert (code, errors) == (0, "")
        return printed.split()

    return offered


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("afield ex", ["export"]),
        ("afield train --method far-c", ["far-channel-gate", "far-conv"]),
        ("afield methods far-c", ["far-channel-gate", "far-conv"]),
        ("afield compare photos --methods baseline,far-c", ["baseline,far-channel-gate", "baseline,far-conv"]),
        ("afield compare photos --methods far-conv,far-c", ["far-conv,far-channel-gate"]),
        ("afield data show digit", ["digit5", "digit5-m3sda", "digit5-padded", "digits"]),
        ("afield data download rot", ["rotated-mnist", "rotated-mnist-1000"]),
        ("afield train --data pho", []),  # and so the shell offers its files
        ("afield table runs --protocol digits/", ["digits/embedded", "digits/dg"]),
        ("afield train --task ", ["uda", "dg"]),
        ("afield table runs --selector e", ["entropy", "ensemble"]),
        ("afield figure t", ["tsne"]),
        ("afield export runs/x --format s", ["safetensors"]),
        ("afield bench plan.toml --engine r", ["ray"]),
    ],
)
def test_a_shell_completes(complete, words, expected):
    assert sorted(complete(words)) == sorted(expected)


def test_a_shell_completes_every_protocol(complete):
    assert set(complete("afield table runs --protocol ")) == set(protocols())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(shell, call, monkeypatch):
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    code, script, _ = call("--show-completion")
    assert code == 0
    assert f"_AFIELD_COMPLETE=complete_{shell}" in script


def test_completion_is_installed_where_the_shell_looks(call, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    # Whatever shell started the tests, if one did.
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    assert call("--install-completion")[0] == 0
    assert "_AFIELD_COMPLETE" in (tmp_path / ".bash_completions/afield.sh").read_text("utf-8")
    assert "afield.sh" in (tmp_path / ".bashrc").read_text("utf-8")

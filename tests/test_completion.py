"""phalanx-run --print-completion: each shell, at a real terminal, completes flags, values and files."""

import re
import subprocess

import packages
import pytest
from harness import clean_environment, command_path
from terminal import Terminal

# The first of these tests installs the shells, which takes minutes on a slow network.
pytestmark = pytest.mark.timeout(900)

# How each shell is started without the person's own settings, and told where its completions are.
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {script}"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit && compinit -u -D && source {script}"),
    "fish": (["fish", "--no-config", "-i"], "source {script}"),
    "tcsh": (["tcsh", "-f"], "source {script}"),
}

# How a flag's name stands in each script, so that it is not found in a help text or in another name.
FLAG = {"bash": rb"--%s[ ']", "zsh": rb"'--%s[=\[]", "fish": rb" -l %s ", "tcsh": rb"[ (]%s[ )]"}


@pytest.fixture(params=sorted(SHELLS))
def shell(request, tmp_path):
    command, setup = SHELLS[request.param]
    packages.install("shells")
    script = tmp_path / "completion"
    text = subprocess.run(
        [command_path("phalanx-run"), "--print-completion", request.param], check=True, stdout=subprocess.PIPE
    ).stdout
    script.write_bytes(text)
    (tmp_path / "unmistakable.py").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folio.txt").touch()
    environment = {**clean_environment(), "TERM": "xterm", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    terminal = Terminal(command, environment, tmp_path)
    # The answer's words are not those of the line that is echoed.
    terminal.type(setup.format(script=script) + "; echo re''ady\n")
    terminal.wait_text(r"\bready\b")
    yield terminal
    terminal.close()


def completed(terminal, line, pattern):
    """Types `line` and a tab; waits for what matches to be shown behind it; empties the line."""
    begin = len(terminal.text)
    terminal.type(line + "\t")
    terminal.wait_text(pattern, after=begin)
    terminal.type("\x03")


def test_a_flag(shell):
    completed(shell, "phalanx-run --rdzv-ba", r"ba\S*ckend|--rdzv-backend")


def test_a_flag_of_ours(shell):
    completed(shell, "phalanx-run --debug-r", r"r\S*ank")


def test_a_value(shell):
    completed(shell, "phalanx-run --event-log-handler cons", r"cons\S*ole")


def test_a_value_behind_an_equals_sign(shell):
    completed(shell, "phalanx-run --event-log-handler=cons", r"cons\S*ole")


def test_the_script_behind_flags(shell):
    completed(shell, "phalanx-run --standalone --nproc-per-node=2 unmis", r"unmis\S*takable\.py")


def test_the_scripts_own_arguments(shell):
    completed(shell, "phalanx-run train.py unmis", r"unmis\S*takable\.py")


def test_a_directory(shell):
    """Files are no log directories."""
    completed(shell, "phalanx-run --log-dir fol", r"fol\S*der")


def test_another_shell_is_refused():
    done = subprocess.run([command_path("phalanx-run"), "--print-completion=ksh"], capture_output=True)
    assert done.returncode == 2
    assert b"--print-completion=ksh: expected bash, zsh, fish or tcsh" in done.stderr


def test_every_flag_of_the_help_is_offered():
    """The script is made from the same table as --help."""

    def text(*arguments):
        return subprocess.run([command_path("phalanx-run"), *arguments], check=True, stdout=subprocess.PIPE).stdout

    shown = set(re.findall(rb"^  (?:-\w, )?(--[a-z-]+)", text("--help").split(b"Known from")[0], re.M))
    assert len(shown) > 40
    for name in SHELLS:
        script = text("--print-completion", name)
        # tcsh has one list for the words behind "--".
        text_of_flags = script.split(b"c/--/")[1] if name == "tcsh" else script
        assert not {flag for flag in shown if not re.search(FLAG[name] % re.escape(flag[2:]), text_of_flags)}

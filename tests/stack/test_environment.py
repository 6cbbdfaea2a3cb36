import stat
import subprocess
from pathlib import Path

from config.dev.stack import environment
from config.dev.stack.kept_settings import KeptSettings


def test_the_file_is_private_and_a_shell_reads_it_back(tmp_path: Path) -> None:
    file = tmp_path / "stack.env"
    environment.write(file, {"PLAIN": "redis://:a1@127.0.0.1:1/0", "PATHLIKE": "/a folder/with $HOME 'quotes'"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().startswith("PLAIN=redis://:a1@127.0.0.1:1/0\n")
    script = f'set -a; . {file}; printf "%s" "$PATHLIKE"'
    assert subprocess.check_output(["sh", "-c", script], text=True) == "/a folder/with $HOME 'quotes'"


def test_shell_variables_override_the_stack() -> None:
    own = {"REDIS_URL": "ours", "S3_BUCKET": "ours"}
    given = {"REDIS_URL": "theirs", "EXPORT_DB_SLOTS": "2", "HOME": "/"}
    assert environment.effective(own, given) == {"REDIS_URL": "theirs", "S3_BUCKET": "ours", "EXPORT_DB_SLOTS": "2"}


def test_a_secret_file_from_the_shell_replaces_the_stack_secret() -> None:
    own = {"REDIS_URL": "ours", "S3_BUCKET": "ours"}
    given = {"REDIS_URL_FILE": "/run/secrets/redis_url", "S3_BUCKET_FILE": "no secret"}
    assert environment.effective(own, given) == {"REDIS_URL_FILE": "/run/secrets/redis_url", "S3_BUCKET": "ours"}
    assert environment.effective(own, {"REDIS_URL_FILE": ""})["REDIS_URL"] == "ours"


def test_passwords_and_ports_stay_the_same_between_runs(tmp_path: Path) -> None:
    first = KeptSettings(tmp_path)
    secret, ports = first.secret("x"), first.free_ports("web", 2)
    assert len(secret) == 40
    again = KeptSettings(tmp_path)
    assert (again.secret("x"), again.free_ports("web", 2)) == (secret, ports)
    assert stat.S_IMODE((tmp_path / "identity.json").stat().st_mode) == 0o600

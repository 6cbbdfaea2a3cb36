import stat
import subprocess
from pathlib import Path

import pytest

from config.dev.stack import environment
from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.process import StackError
from config.dev.stack.seaweedfs import SeaweedFS


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


def test_the_processes_have_the_effective_settings_and_the_rest_of_the_shell(tmp_path: Path) -> None:
    """With SECRET_KEY and SECRET_KEY_FILE, no process would start."""
    given = {"SECRET_KEY_FILE": "/run/secrets/key", "HOME": "/"}
    assert environment.of_processes(tmp_path, {"SECRET_KEY": "ours", "DEBUG": "true"}, given) == {
        "SECRET_KEY_FILE": "/run/secrets/key",
        "HOME": "/",
        "DEBUG": "true",
        "TMPDIR": str(tmp_path / "tmp"),
    }


def test_a_storage_key_from_a_file_is_the_key_of_the_server(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("theirs\n")
    kept = KeptSettings(tmp_path)
    server = SeaweedFS(tmp_path, kept, durable=False, given={"S3_SECRET_ACCESS_KEY_FILE": str(file)})
    assert server.keys["S3_SECRET_ACCESS_KEY"] == "theirs"
    with pytest.raises(StackError, match="S3_ACCESS_KEY_ID_FILE names a file that cannot be read"):
        SeaweedFS(tmp_path, kept, durable=False, given={"S3_ACCESS_KEY_ID_FILE": str(tmp_path / "none")})


def test_passwords_and_ports_stay_the_same_between_runs(tmp_path: Path) -> None:
    first = KeptSettings(tmp_path)
    secret, ports = first.secret("x"), first.free_ports("web", 2)
    assert len(secret) == 40
    again = KeptSettings(tmp_path)
    assert (again.secret("x"), again.free_ports("web", 2)) == (secret, ports)
    assert stat.S_IMODE((tmp_path / "identity.json").stat().st_mode) == 0o600

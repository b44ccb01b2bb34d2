"""Which machine is this? By an id that no other has, never by its name."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import os_support


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, whose /etc/machine-id is its image's."""
    monkeypatch.setattr(os_support, "pid_namespace", lambda: "pid:[42]")


@pytest.mark.usefixtures("unnamed")
def test_a_container_keeps_a_random_machine_id_in_its_home(tmp_path: Path) -> None:
    homes = [tmp_path / "a" / "home", tmp_path / "b"]
    ids = [os_support.machine_id.__wrapped__(home) for home in homes]
    assert ids[0] and ids[1] and ids[0] != ids[1]
    assert [os_support.machine_id.__wrapped__(home) for home in homes] == ids
    kept = homes[0] / os_support.MACHINE_FILE
    assert kept.stat().st_mode & 0o777 == 0o600 and homes[0].stat().st_mode & 0o777 == 0o700
    assert [each.name for each in homes[0].iterdir()] == [kept.name]


@pytest.mark.usefixtures("unnamed")
@pytest.mark.parametrize("held", ["", "uninitialized\n", "0" * 32, "not an id"])
def test_a_file_that_holds_no_machine_id_is_replaced(tmp_path: Path, held: str) -> None:
    kept = tmp_path / os_support.MACHINE_FILE
    kept.write_text(held)
    made = os_support.machine_id.__wrapped__(tmp_path)
    assert made and made == os_support.machine_id.__wrapped__(tmp_path)
    assert kept.read_text() != held


@pytest.mark.usefixtures("unnamed")
def test_all_who_ask_at_once_get_the_same_machine_id(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as many:
        ids = set(many.map(lambda _: os_support.machine_id.__wrapped__(tmp_path), range(32)))
    assert len(ids) == 1


@pytest.mark.usefixtures("unnamed")
def test_without_a_home_the_machine_is_not_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert os_support.machine_id.__wrapped__(tmp_path / "file" / "home") == ""
    assert "set HOLDFAST_HOME" in caplog.text


def test_the_machine_id_itself_is_not_shown_and_the_hostname_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os_support, "_read_machine_id", lambda path: "ab" * 16)
    made = os_support.machine_id.__wrapped__(tmp_path)
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert os_support.machine_id.__wrapped__(tmp_path) == made != "ab" * 16

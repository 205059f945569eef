from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.config.reading import server_settings
from sandlot.config.settings import ServerSettings, is_loopback, variables
from sandlot.config.settings_doc import settings_doc
from sandlot.domain.capacity.limits import DEFAULT_CEILINGS
from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.errors import InvalidRequest

DOC = Path(__file__).parents[3] / "docs/reference/settings.md"
KEY = "0123456789abcdef"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ServerSettings.model_fields:
        for variable in variables(name):
            monkeypatch.delenv(variable, raising=False)


def test_the_document_has_every_setting() -> None:
    assert DOC.read_text() == settings_doc(), (
        "run: python -m sandlot.config.settings_doc > docs/reference/settings.md"
    )
    for name, field in ServerSettings.model_fields.items():
        assert f"`{variables(name)[0]}`" in DOC.read_text()
        assert field.description, f"{name} has no description"


def test_defaults_are_the_promised_ones() -> None:
    settings = server_settings()
    assert (settings.host, settings.port, settings.key) == ("127.0.0.1", 8000, None)
    assert settings.pool == PoolPolicy(5, 2, 20)
    assert (settings.idle_timeout_s, settings.lifetime_s) == (1800, 3600)
    assert settings.allow_never is False
    assert settings.ceilings == DEFAULT_CEILINGS
    assert (settings.overcommit_memory, settings.overcommit_cpus) == (1.5, 8)


def test_s3_ceilings_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_MAX_MEMORY_BYTES", str(1024**3))
    assert server_settings().recipe_defaults.ceilings.memory_bytes == 1024**3
    monkeypatch.setenv("SANDLOT_MAX_PIDS", "0")
    with pytest.raises(InvalidRequest, match="SANDLOT_MAX_PIDS"):
        server_settings()


@pytest.mark.parametrize(
    ("variable", "field"),
    [
        ("PORT", "port"),
        ("POOL_SIZE", "pool_size"),
        ("MIN_POOL_SIZE", "min_pool_size"),
        ("MAX_POOL_SIZE", "max_pool_size"),
    ],
)
def test_earlier_names_are_read_and_ours_win(
    monkeypatch: pytest.MonkeyPatch, variable: str, field: str
) -> None:
    others = {"min_pool_size": 0, "pool_size": 3, "max_pool_size": 9}
    others.pop(field, None)
    monkeypatch.setenv(variable, "3")
    assert getattr(server_settings(**others), field) == 3
    monkeypatch.setenv(f"SANDLOT_{variable}", "4" if field != "min_pool_size" else "2")
    assert getattr(server_settings(**others), field) == (4 if field != "min_pool_size" else 2)


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "9000")
    monkeypatch.setenv("SANDLOT_PORT", "9001")
    assert server_settings(port=9002).port == 9002
    assert server_settings(port=None).port == 9001


def test_worker_id_and_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_ID", "worker7")
    monkeypatch.setenv("SANDLOT_ALLOWED_HOSTS", "sandboxes.example.org, 10.0.0.7")
    settings = server_settings()
    assert settings.worker_id == "worker7"
    assert settings.allowed_hosts == ("sandboxes.example.org", "10.0.0.7")


@pytest.mark.parametrize(
    ("size", "expected"), [(1, PoolPolicy(1, 1, 20)), (30, PoolPolicy(30, 2, 30)), (0, PoolPolicy(0, 0, 20))]
)
def test_a_pool_size_alone_is_enough(size: int, expected: PoolPolicy) -> None:
    assert server_settings(pool_size=size).pool == expected


def test_bounds_that_contradict_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="min ≤ size ≤ max"):
        server_settings(pool_size=5, max_pool_size=3)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_a_host_beyond_loopback_needs_a_key(host: str) -> None:
    with pytest.raises(InvalidRequest, match="SANDLOT_API_KEY"):
        server_settings(host=host)
    assert server_settings(host=host, api_key=KEY).key == KEY


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("127.0.0.1.example.org", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
def test_what_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_the_key_may_stand_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    monkeypatch.setenv("SANDLOT_API_KEY_FILE", str(file))
    assert server_settings(host="0.0.0.0").key == KEY
    monkeypatch.setenv("SANDLOT_API_KEY", KEY)
    with pytest.raises(InvalidRequest, match="not both"):
        server_settings()


@pytest.mark.parametrize("content", ["", "short", "sixteen letters\nand a line", "x" * 5000])
def test_a_bad_key_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    with pytest.raises(InvalidRequest) as raised:
        server_settings(api_key_file=file)
    assert content[:5] not in raised.value.message or not content


@pytest.mark.parametrize("given", [f"{KEY} ", f" {KEY}\n", f"\t{KEY}"])
def test_space_around_a_key_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("SANDLOT_API_KEY", given)
    assert server_settings().key == KEY


@pytest.mark.parametrize(
    "given", ["   ", "0123456789 abcdef", "0123456789abcdé́f", "0123456789\tabcdef", KEY[:15] + " "]
)
def test_a_bad_key_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("SANDLOT_API_KEY", given)
    with pytest.raises(
        InvalidRequest, match="at least 16 printable ASCII characters and no spaces"
    ) as raised:
        server_settings()
    assert "0123" not in raised.value.message


def test_a_missing_key_file_is_an_error_and_not_an_open_server(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="Cannot read"):
        server_settings(api_key_file=tmp_path / "none")


def test_errors_name_the_variable_and_never_show_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "many")
    monkeypatch.setenv("SANDLOT_API_KEY", "tooshort")
    monkeypatch.setenv("SANDLOT_MAX_EXECS", "0")
    with pytest.raises(InvalidRequest) as raised:
        server_settings()
    assert "PORT" in raised.value.message
    assert "SANDLOT_MAX_EXECS" in raised.value.message
    assert "tooshort" not in raised.value.message
    assert "tooshort" not in repr(ServerSettings(api_key="0123456789abcdef-tooshort", port=1, max_execs=1))


def test_timeouts_fit_each_other() -> None:
    with pytest.raises(InvalidRequest, match="SANDLOT_MAX_EXEC_TIMEOUT_S"):
        server_settings(exec_timeout_s=10, max_exec_timeout_s=5)


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_DATA_DIR", "~/box")
    assert server_settings().data_dir == Path.home() / "box"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SANDLOT_POOL_SISE", "Did you mean 'SANDLOT_POOL_SIZE'?"),
        ("SANDLOT_REDIS_ULR", "Did you mean 'SANDLOT_REDIS_URL'?"),
        ("SANDLOT_XYZ", "unset it if it belongs to another program"),
    ],
)
def test_u1_a_misspelled_variable_is_an_error(
    monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
) -> None:
    monkeypatch.setenv(variable, "3")
    with pytest.raises(InvalidRequest, match=variable) as refused:
        server_settings()
    assert meant in refused.value.message
    monkeypatch.setenv(variable, "")  # as if it were not set
    server_settings()


def test_u1_a_variable_of_another_member_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SANDLOT_REDIS_URL", "SANDLOT_CELL", "SANDLOT_URL", "SANDLOT_TEST_ROUNDS"):
        monkeypatch.setenv(variable, "redis://x")
    assert server_settings().port == 8000


def test_u1_a_misspelled_argument_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"Unknown setting 'pool_sise'\. Did you mean 'pool_size'"):
        server_settings(pool_sise=3)

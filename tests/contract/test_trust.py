"""The installation's secret, and the credentials that are derived from it."""

from __future__ import annotations

import pytest

from sapwood_contract.trust import engine_credential, secret_of

SECRET = b"0123456789abcdef"


@pytest.mark.parametrize("around", [b"", b"\n", b" \r\n"])
def test_white_space_around_a_secret_in_its_file_is_no_part_of_it(around: bytes) -> None:
    assert secret_of(around + SECRET + around) == SECRET


def test_a_secret_that_is_too_short_is_refused_and_not_quoted() -> None:
    with pytest.raises(ValueError, match="it has 7 bytes; take 16 random ones or more") as refused:
        secret_of(b"hunter2\n")
    assert "hunter2" not in str(refused.value)


def test_each_service_of_each_installation_has_a_credential_of_its_own() -> None:
    made = {
        engine_credential(secret, namespace, service)
        for secret in (SECRET, b"f" * 16)
        for namespace in ("a", "b")
        for service in ("chat", "code")
    }
    assert len(made) == 8
    assert {len(credential) for credential in made} == {64}
    assert engine_credential(SECRET, "a", "chat") == engine_credential(SECRET, "a", "chat")

"""What lies in the gateway's directory."""

from __future__ import annotations

import socket
import ssl
import stat
from pathlib import Path

import pytest
import yaml
from tests.adapters.gateway.client import GPU, NIC

from claimlet.adapters.gateway import Credentials, GatewayError, InvalidDriverNameError
from claimlet.events.errors import LogSetupError


class TestTokens:
    def test_a_token_tells_its_driver(self, tmp_path: Path) -> None:
        """Who asks is known from the token alone."""
        credentials = Credentials(tmp_path)

        assert credentials.driver_of(credentials.token(GPU)) == GPU

    def test_tokens_survive_a_restart(self, tmp_path: Path) -> None:
        """Running drivers keep their kubeconfig, so their tokens must stay good."""
        assert Credentials(tmp_path).token(GPU) == Credentials(tmp_path).token(GPU)

    @pytest.mark.parametrize("token", ["", ".", GPU, f"{GPU}.", f"{GPU}.00", "\udcff", "a" * 9000])
    def test_anything_else_is_no_token(self, tmp_path: Path, token: str) -> None:
        """A guessed or mangled token belongs to nobody."""
        assert Credentials(tmp_path).driver_of(token) is None

    def test_one_drivers_token_is_not_anothers(self, tmp_path: Path) -> None:
        """The name in front of the MAC cannot be exchanged."""
        credentials = Credentials(tmp_path)
        mac = credentials.token(GPU).rpartition(".")[2]

        assert credentials.driver_of(f"{NIC}.{mac}") is None

    def test_another_state_directory_has_other_tokens(self, tmp_path: Path) -> None:
        """Each node has its own key."""
        token = Credentials(tmp_path / "a").token(GPU)

        assert Credentials(tmp_path / "b").driver_of(token) is None

    @pytest.mark.parametrize("name", ["", "../x", "A.example", "a b", "x" * 64, "a..b", 'a"b'])
    def test_a_bad_driver_name_gets_none(self, tmp_path: Path, name: str) -> None:
        """A name that no driver can have never becomes a file name."""
        with pytest.raises(InvalidDriverNameError):
            Credentials(tmp_path).token(name)

    def test_a_damaged_key_is_reported(self, tmp_path: Path) -> None:
        """A key of the wrong size is not replaced in silence."""
        Credentials(tmp_path)
        (tmp_path / "gateway" / "key").write_bytes(b"short")

        with pytest.raises(GatewayError, match="no gateway key") as caught:
            Credentials(tmp_path)
        assert "delete it" in caught.value.hint

    def test_a_readable_key_is_reported(self, tmp_path: Path) -> None:
        """A key that others may have read is not used."""
        Credentials(tmp_path)
        (tmp_path / "gateway" / "key").chmod(0o644)

        with pytest.raises(GatewayError, match="read by others"):
            Credentials(tmp_path)

    def test_an_unusable_directory_is_one_line(self, tmp_path: Path) -> None:
        """A state directory that cannot be written gives an error, not a traceback."""
        (tmp_path / "gateway").write_text("in the way")

        with pytest.raises(LogSetupError, match="cannot be used"):
            Credentials(tmp_path)


class TestPort:
    def test_is_kept(self, tmp_path: Path) -> None:
        """The first start chooses a port, later ones take the same."""
        with Credentials(tmp_path).listen() as first:
            port = first.getsockname()[1]
        with Credentials(tmp_path).listen() as second:
            assert second.getsockname() == ("127.0.0.1", port)

    def test_that_is_taken_is_an_error(self, tmp_path: Path) -> None:
        """Drivers know the old port, so moving to another would hide the trouble."""
        credentials = Credentials(tmp_path)
        with (
            credentials.listen() as held,
            pytest.raises(GatewayError, match=str(held.getsockname()[1])) as caught,
        ):
            credentials.listen()
        assert "delete" in caught.value.hint

    def test_that_is_given_goes_before_the_kept_one(self, tmp_path: Path) -> None:
        """A configured port is taken, named by kubeconfigs, and what to do where it is taken."""
        with Credentials(tmp_path).listen() as kept:
            free = kept.getsockname()[1] + 10_001
            configured = Credentials(tmp_path, port=free)
            with configured.listen() as sock:
                assert sock.getsockname()[1] == free
                assert f":{free}\n" in configured.kubeconfig_for(GPU).read_text()
                with pytest.raises(GatewayError, match=str(free)) as caught:
                    configured.listen()
        assert "set another one" in caught.value.hint

    @pytest.mark.parametrize("text", ["", "x", "0", "65536", "-1"])
    def test_file_with_something_else_is_an_error(self, tmp_path: Path, text: str) -> None:
        """A damaged port file is reported with its name."""
        credentials = Credentials(tmp_path)
        (tmp_path / "gateway" / "port").write_text(text)

        with pytest.raises(GatewayError, match="holds no port"):
            credentials.listen()


class TestKubeconfig:
    def test_comes_before_the_first_start(self, tmp_path: Path) -> None:
        """A driver can be set up before the service has ever run; the port is then kept."""
        path = Credentials(tmp_path).kubeconfig_for(GPU)
        with Credentials(tmp_path).listen() as sock:
            assert f":{sock.getsockname()[1]}\n" in path.read_text()

    def test_is_complete_and_private(self, tmp_path: Path) -> None:
        """The file names server and token and is for its owner only."""
        credentials = Credentials(tmp_path)
        with credentials.listen() as sock:
            port = sock.getsockname()[1]
        path = credentials.kubeconfig_for(GPU)
        config = yaml.safe_load(path.read_text())

        assert path == tmp_path / "gateway" / f"{GPU}.kubeconfig"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert config["clusters"][0]["cluster"]["server"] == f"https://127.0.0.1:{port}"
        assert config["users"][0]["user"]["token"] == credentials.token(GPU)

    def test_follows_a_new_port(self, tmp_path: Path) -> None:
        """Whoever deletes the port file gets rewritten kubeconfigs at the next start."""
        credentials = Credentials(tmp_path)
        credentials.listen().close()
        path = credentials.kubeconfig_for("1.5")
        (tmp_path / "gateway" / "port").unlink()
        (tmp_path / "gateway" / "Not A Driver.kubeconfig").write_text("")
        credentials.listen().close()
        credentials.refresh()

        assert f":{credentials.port}\n" in path.read_text()
        assert yaml.safe_load(path.read_text())["users"][0]["name"] == "1.5"


class TestCertificate:
    def test_is_the_same_at_each_start(self, tmp_path: Path) -> None:
        """Drivers know the certificate, so it must not change while the key is the same."""
        assert Credentials(tmp_path / "a").certificate == Credentials(tmp_path / "a").certificate
        assert Credentials(tmp_path / "a").certificate != Credentials(tmp_path / "b").certificate

    def test_is_good_for_loopback_and_ever(self, tmp_path: Path) -> None:
        """What the hand-written bytes say is what was meant."""
        context = ssl.create_default_context(cadata=Credentials(tmp_path).certificate)
        (found,) = context.get_ca_certs()

        assert found["subject"] == found["issuer"]
        assert found["subjectAltName"] == (("DNS", "localhost"), ("IP Address", "127.0.0.1"))
        assert found["notBefore"] == "Jan  1 00:00:00 2020 GMT"
        assert found["notAfter"] == "Dec 31 23:59:59 9999 GMT"

    def test_the_key_fits_and_is_private(self, tmp_path: Path) -> None:
        """The server can use what is written for it, and nobody else can read it."""
        path = Credentials(tmp_path).tls_file()
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(path)

        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_listening_socket_is_loopback_only(tmp_path: Path) -> None:
    """Nothing outside of the machine reaches the gateway."""
    with Credentials(tmp_path).listen() as sock:
        assert sock.family is socket.AF_INET
        assert sock.getsockname()[0] == "127.0.0.1"

"""Which drivers are acceptable, through which version, and at which endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from claimlet.adapters.plugins.registration import NotRegisteredError, Offer, examine
from claimlet.adapters.plugins.wire import PluginInfo

SOCKET = "/run/claimlet/plugins_registry/d-reg.sock"


def offer(
    *versions: str, name: str = "gpu.example.com", endpoint: str = "", **mapped: str
) -> Offer:
    """Return what a driver that says this about itself offers."""
    info = PluginInfo(
        type="DRAPlugin",
        name=name,
        endpoint=endpoint,
        supported_versions=versions or ("v1.DRAPlugin",),
    )
    return examine(info, socket=SOCKET, endpoint_map=mapped)


class TestVersions:
    """The first of the driver's own list that is known here."""

    @pytest.mark.scenario("G02")
    @pytest.mark.rule("R3")
    @pytest.mark.parametrize(
        ("versions", "api"),
        [
            (("v1beta1.DRAPlugin",), "v1beta1"),
            (("v1.DRAPlugin",), "v1"),
            (("v1.DRAPlugin", "v1beta1.DRAPlugin"), "v1"),
            (("v1beta1.DRAPlugin", "v1.DRAPlugin"), "v1beta1"),
            (("v2.DRAPlugin", "v1.DRAResourceHealth", "v1beta1.DRAPlugin"), "v1beta1"),
        ],
    )
    def test_choice(self, versions: tuple[str, ...], api: str) -> None:
        """The driver's own order decides, over what is not known here."""
        found = offer(*versions)

        assert found.api.name == api
        assert found.supported_versions == versions

    @pytest.mark.scenario("G03")
    @pytest.mark.rule("R3")
    @pytest.mark.parametrize(
        "version",
        ["1.0.0", "v1alpha4", "v1alpha3.NodeService", "v1.DRAResourceHealth", "v1", "v1.drAPlugin"],
    )
    def test_refused(self, version: str) -> None:
        """Old services, bare version numbers and a health service alone are refused by name."""
        with pytest.raises(NotRegisteredError, match="v1beta1") as caught:
            offer(version)

        assert repr(version) in str(caught.value)

    @pytest.mark.scenario("G01")
    def test_empty_list(self) -> None:
        """A driver that announces nothing is refused with that reason."""
        info = PluginInfo(type="DRAPlugin", name="gpu.example.com")

        with pytest.raises(NotRegisteredError, match="no services"):
            examine(info, socket=SOCKET, endpoint_map={})

    def test_more_than_anybody_has(self) -> None:
        """A list of hundreds, or of essays, is no list of services."""
        with pytest.raises(NotRegisteredError, match="more services"):
            offer(*["v9.DRAPlugin"] * 100, "v1.DRAPlugin")
        with pytest.raises(NotRegisteredError, match="more services"):
            offer("x" * 10_000)


class TestName:
    """A driver's name is a DNS subdomain, as in the allocations that will name it."""

    @pytest.mark.parametrize("name", ["gpu.example.com", "d", "1gpu.x", f"{'a' * 63}.b"])
    def test_taken(self, name: str) -> None:
        """Labels of letters, digits and dashes."""
        assert offer(name=name).driver == name

    @pytest.mark.parametrize(
        "name",
        ["", "GPU.example.com", "gpu_a", "-gpu", "a..b", "a/b", "a\n", "a" * 254, "a.b*", "é"],
    )
    def test_refused(self, name: str) -> None:
        """Anything else could stand for something in a path or in a subject."""
        with pytest.raises(NotRegisteredError, match="DNS subdomain") as caught:
            offer(name=name)

        assert len(str(caught.value)) < 200


class TestEndpoint:
    """Where the driver serves, as it lies on this host."""

    def test_empty(self) -> None:
        """Without an endpoint it is the registration socket itself."""
        assert offer().endpoint == SOCKET

    def test_may_open_later(self) -> None:
        """The endpoint need not be there yet."""
        assert offer(endpoint="/run/nowhere/dra.sock").endpoint == "/run/nowhere/dra.sock"

    def test_mapped(self) -> None:
        """The longest mapped prefix is replaced, at whole path elements only."""
        mapped = {"/plugins": "/host/a", "/plugins/gpu": "/host/b/", "/": "/other"}

        assert offer(endpoint="/plugins/gpu/dra.sock", **mapped).endpoint == "/host/b/dra.sock"
        assert offer(endpoint="/plugins/nic/dra.sock", **mapped).endpoint == "/host/a/nic/dra.sock"
        assert offer(endpoint="/plugins2/dra.sock", **mapped).endpoint == "/other/plugins2/dra.sock"

    @pytest.mark.parametrize(
        ("endpoint", "text"),
        [
            ("dra.sock", "not absolute"),
            ("unix:///run/dra.sock", "not absolute"),
            ("127.0.0.1:80", "not absolute"),
            ("/" + "x" * 107, "108 bytes, at most 107"),
            ("/" + "é" * 54, "109 bytes, at most 107"),
            ("/run/a,b.sock", "comma"),
            ("/run/a\x00b.sock", "control character"),
            ("/run/a\nb.sock", "control character"),
        ],
    )
    def test_refused(self, endpoint: str, text: str) -> None:
        """A path that cannot be dialled is refused with the reason, before anybody dials it."""
        with pytest.raises(NotRegisteredError, match=text):
            offer(endpoint=endpoint)

    def test_a_file_is_no_socket(self, root: Path) -> None:
        """What lies at the endpoint must be a socket."""
        path = root / "dra.sock"
        path.touch()

        with pytest.raises(NotRegisteredError, match="no socket"):
            offer(endpoint=str(path))

"""Writes the keys, certificates and kubeconfigs of one cluster: its own authority, and one identity a component.

The names in the certificates are what Kubernetes' bootstrap roles and its Node authoriser know
(``system:kube-scheduler``, ``system:node:NAME`` of ``system:nodes``, …), so no role has to be written for them.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cluster.layout import (
    API_PORT,
    API_SERVICE_ADDRESS,
    CLUSTER_DOMAIN,
    CONTROL_PLANE_ADDRESS,
    node_address,
    node_number,
)

VALID_DAYS = 7
"""Longer than any cluster of tests lives."""
CLOCK_SKEW = timedelta(minutes=5)

COMPONENTS = {
    "admin": ("e2e-admin", "system:masters"),
    "coredns": ("e2e-coredns", "system:masters"),
    "kwok": ("e2e-kwok", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-proxy": ("system:kube-proxy", ""),
}
"""File name -> common name and organisation (user and group) of those that have a kubeconfig."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The cluster's certificate authority; it signs into ``folder``."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def issue(self, file: str, user: str, group: str = "", server_names: Sequence[str] = ()) -> None:
        """Write FILE.key and FILE.crt: a server's where it has ``server_names`` (host names and addresses), else a
        client's."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if server_names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _begin(_name(user, group), self.certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if server_names:
            alternatives = x509.SubjectAlternativeName([_general_name(name) for name in server_names])
            builder = builder.add_extension(alternatives, critical=False)
        _write(self.folder / f"{file}.key", _pem(key))
        certificate = builder.sign(self.key, hashes.SHA256())
        _write(self.folder / f"{file}.crt", certificate.public_bytes(serialization.Encoding.PEM))

    def kubeconfig(self, file: str) -> None:
        """Write FILE.kubeconfig for the identity that `issue` wrote as FILE."""
        server = f"https://{CONTROL_PLANE_ADDRESS}:{API_PORT}"
        encoded = {
            suffix: base64.b64encode((self.folder / name).read_bytes()).decode()
            for suffix, name in (("ca", "ca.crt"), ("crt", f"{file}.crt"), ("key", f"{file}.key"))
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "e2e", "cluster": {"server": server, "certificate-authority-data": encoded["ca"]}},
            ],
            "users": [
                {
                    "name": file,
                    "user": {"client-certificate-data": encoded["crt"], "client-key-data": encoded["key"]},
                },
            ],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": file}}],
            "current-context": "e2e",
        }
        _write(self.folder / f"{file}.kubeconfig", json.dumps(config, indent=1).encode())


def create(folder: Path) -> Authority:
    """Make the authority and every identity of the control plane in ``folder`` (made; readable by its owner only)."""
    folder.mkdir(parents=True, mode=0o700)
    authority = _authority(folder)
    api_names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        f"kubernetes.default.svc.{CLUSTER_DOMAIN}",
    ]
    addresses = ["127.0.0.1", CONTROL_PLANE_ADDRESS, API_SERVICE_ADDRESS]
    authority.issue("apiserver", "kube-apiserver", server_names=[*api_names, *addresses, "localhost"])
    authority.issue("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters")
    for file, (user, group) in COMPONENTS.items():
        authority.issue(file, user, group)
        authority.kubeconfig(file)
    _service_account_key(folder)
    return authority


def load(folder: Path) -> Authority:
    """Return the authority that `create` made."""
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return Authority(folder, key, x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()))


def issue_node(authority: Authority, node: str) -> None:
    """Write a node's two identities: ``NODE.kubeconfig`` as a client, ``NODE-serving`` for its log server."""
    user = f"system:node:{node}"
    authority.issue(node, user, "system:nodes")
    authority.kubeconfig(node)
    authority.issue(f"{node}-serving", user, "system:nodes", [node, node_address(node_number(node))])


def _authority(folder: Path) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("sapwood-e2e")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _begin(subject, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder / "ca.key", _pem(key))
    _write(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
    return Authority(folder, key, certificate)


def _service_account_key(folder: Path) -> None:
    """Write the key that signs service account tokens."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write(folder / "sa.key", _pem(key))
    public = key.public_key()
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    _write(folder / "sa.pub", public.public_bytes(serialization.Encoding.PEM, kind))


def _begin(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=VALID_DAYS))
    )


def _name(common_name: str, organisation: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organisation:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(attributes)


def _general_name(name: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    encoding, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, kind, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)

"""A real broker as in production: TLS with certificates of an own CA, SCRAM-SHA-512, and ACLs that forbid all else."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
    UserScramCredentialUpsertion,
)

from commitlake import config
from commitlake.kafka import embedded
from commitlake.kafka.clients import python_options
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.spark import runtime

SECURE = Path(__file__).parents[2] / "docs" / "how-to" / "secure.md"
ADMIN, OUTSIDER = "admin", "outsider"
STORE_PASSWORD = "store-password"
MECHANISM = "SCRAM-SHA-512"
JAAS = 'org.apache.kafka.common.security.{}LoginModule required username="{}" password="{}"'
PASSWORDS = {
    name: f'{name}-Pa55"w\\ord; with=all'
    for name in (ADMIN, "coordinator", "producer", "administrator", "reader", OUTSIDER)
}
"""By user; coordinator, producer and administrator are those of the table of ACLs in docs/how-to/secure.md."""


@dataclass(frozen=True)
class Secured:
    """A secured broker that runs, and how to be let in."""

    broker: EmbeddedBroker
    place: Path

    @property
    def bootstrap_servers(self) -> str:
        return self.broker.bootstrap_servers

    def options(self, user: str, *, password: str | None = None, ca: str = "ca") -> dict[str, str]:
        """`kafka.options` of a user, in clear."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": jaas("scram.Scram", user, PASSWORDS[user] if password is None else password) + ";",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.place / f"{ca}.pem"),
        }

    def admin(self) -> KafkaAdminClient:
        given = {"bootstrap_servers": self.bootstrap_servers, "options": self.options(ADMIN)}
        return KafkaAdminClient(**python_options(config.from_mapping({"kafka": given}).kafka))

    def secret(self, user: str) -> str:
        """The part of a password that no escaping changes."""
        return PASSWORDS[user].partition('"')[0]

    def change_password(self, user: str, password: str) -> None:
        """Gives a user another one; who is logged in stays."""
        client = self.admin()
        client.alter_user_scram_credentials([UserScramCredentialUpsertion(user, MECHANISM, password)])
        client.close()

    def grant(self, who: str, kind: str, name: str, operation: str) -> None:
        self._create([_acl(who, kind, name, operation)])

    def permit(self, prefix: str, group: str) -> None:
        """Grants each user what the table of ACLs says, and nothing else."""
        self._create(list(documented_acls(prefix, group)))

    def _create(self, acls: list[ACL]) -> None:
        client = self.admin()
        found = client.create_acls(acls)
        client.close()
        assert not found["failed"], found


class _BrokerWithUsers(EmbeddedBroker):
    """Its users have passwords before the first login: for some seconds these are arguments of a process."""

    def _prepare(self, controller_port: int) -> None:
        metadata = self.data_dir / "logs" / "meta.properties"
        is_new = not metadata.exists()
        super()._prepare(controller_port)
        if is_new:
            metadata.unlink()  # a directory is formatted only once
            self._format()

    def _format(self) -> None:
        command = [*self._command(embedded._classpath())[:-2], "kafka.tools.StorageTool", "format"]
        command += ["--cluster-id", embedded._new_id(), "--config", "server.properties"]
        for user, password in PASSWORDS.items():
            command += ["--add-scram", f'{MECHANISM}=[name="{user}",password="{password}"]']
        subprocess.run(command, check=True, cwd=self.data_dir)


@contextmanager
def secured_broker(place: Path) -> Iterator[Secured]:
    """A broker that lets nobody do anything but the superuser `admin`, until `permit` is called."""
    make_certificates(place)
    broker = _BrokerWithUsers(place / "kafka", properties=_properties(place))
    with broker:
        yield Secured(broker, place)


def make_certificates(place: Path) -> None:
    """server.p12 with a certificate for 127.0.0.1 and localhost signed by ca.pem; other.pem is of a CA that did not."""
    usage = ["-ext", "bc:c", "-ext", "ku:c=keyCertSign,cRLSign"]
    for name in ("ca", "other"):
        _keytool(place, "-genkeypair", "-alias", name, "-dname", f"CN={name}", *usage)
        _keytool(place, "-exportcert", "-rfc", "-alias", name, "-file", str(place / f"{name}.pem"))
    make_server_certificate(place, "ca")


def make_server_certificate(place: Path, signer: str) -> None:
    """server.p12, in place of an older one."""
    (place / "server.p12").unlink(missing_ok=True)
    name, san = f"server-of-{signer}", ["-ext", "san=ip:127.0.0.1,dns:localhost", "-ext", "eku=serverAuth"]
    _keytool(place, "-genkeypair", "-alias", name, "-dname", "CN=broker", "-signer", signer, *san)
    own = ["-destkeystore", str(place / "server.p12"), "-deststorepass", STORE_PASSWORD]
    _keytool(place, "-importkeystore", *own, "-srcalias", name, source="src")


def documented_acls(prefix: str, group: str) -> Iterator[ACL]:
    """The table of ACLs in docs/how-to/secure.md, with `P` and the producer group filled in."""
    who = ""
    for row in _rows("## Kafka ACLs"):
        who = row[0] or who
        kind, names = row[1].partition(" ")[0], re.findall("`([^`]+)`", row[1])
        assert names, row
        for name in names:
            full = prefix + name.removeprefix("P").replace("<producer group>", group)
            for operation in row[2].split(", "):
                yield _acl(who, kind, full, operation)


def jaas(module: str, user: str, password: str) -> str:
    """A line of JAAS; quotes and backslashes of the password are escaped."""
    return JAAS.format(module, user, re.sub(r'(["\\])', r"\\\1", password))


def _rows(heading: str) -> Iterator[list[str]]:
    section = SECURE.read_text().partition(f"{heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def _acl(who: str, kind: str, name: str, operation: str) -> ACL:
    pattern = ACLResourcePatternType.PREFIXED if name.endswith("*") else ACLResourcePatternType.LITERAL
    resource = ResourcePattern(ResourceType[kind.rstrip("s").upper()], name.rstrip("*"), pattern)
    named = ACLOperation[re.sub("(?<=[a-z])(?=[A-Z])", "_", operation).upper()]
    return ACL(f"User:{who}", "*", named, ACLPermissionType.ALLOW, resource)


def _properties(place: Path) -> Mapping[str, str]:
    """The controller has a listener of its own, on loopback, where only the broker itself logs in."""
    controller = jaas("plain.Plain", ADMIN, "controller") + f' user_{ADMIN}="controller";'
    return {
        "listener.security.protocol.map": "BROKER:SASL_SSL,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "listener.name.broker.scram-sha-512.sasl.jaas.config": (
            jaas("scram.Scram", ADMIN, PASSWORDS[ADMIN]) + ";"
        ).replace("\\", "\\\\"),
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": controller,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(place / "server.p12"),
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(place / "ca.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": f"User:{ADMIN}",
    }


def _keytool(place: Path, command: str, *arguments: str, source: str = "") -> None:
    """Java's own tool, which is wherever Java is."""
    tool = Path(runtime.java()).resolve().with_name("keytool")
    keys = ["-keyalg", "EC", "-validity", "2"] if command == "-genkeypair" else []
    store = [f"-{source}keystore", str(place / "all.p12"), f"-{source}storepass", STORE_PASSWORD]
    done = subprocess.run(
        [str(tool), command, *keys, *store, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr

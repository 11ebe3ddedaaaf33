"""A Flower deployment on this machine: a SuperLink, SuperNodes, TLS and authenticated nodes.

python examples/flower_app/deploy.py --nodes 3            # TLS, each node with a key of its own
python examples/flower_app/deploy.py --nodes 3 --plain    # no TLS, no keys

The script starts all processes on loopback, runs this app and shows its log as it grows. It stops
all processes at the end, on Ctrl-C, and if one of them dies.
"""

import argparse
import datetime
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

APP = Path(__file__).parent
BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # kvib is installed already
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",  # logs grow line by line
}
"""Environment variables that switch off telemetry, update checks and installations."""


def free_port() -> int:
    """A port that is not in use."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@dataclass
class Deployment:
    """A SuperLink with SuperNodes. Use it in a `with` statement, which stops all processes.

    Args:
        folder: The folder of keys, databases and logs.
        nodes: The number of SuperNodes. Node i has `partition-id=i`.
        secure: Whether to use TLS, and to admit only nodes whose keys are registered.
        say: A function that is called with a line of text for each step. By default it does
            nothing.
    """

    folder: Path
    nodes: int = 3
    secure: bool = True
    say: Callable[[str], None] = lambda line: None
    port: int = field(default_factory=free_port)
    superlink: subprocess.Popen[bytes] | None = None
    supernodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """All started processes. An interrupt can come before they are in the two fields above."""

    def __enter__(self) -> "Deployment":
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start_all()
        except BaseException:
            self._stop_all()  # a `with` statement that is not entered does not call __exit__
            raise
        return self

    def _start_all(self) -> None:
        """Make the keys, and start the SuperLink and all SuperNodes."""
        if self.secure:
            certificates(self.folder)
            for i in range(self.nodes):
                node_key(self.folder, i)
            self.say(f"made a certificate and a key for each of {self.nodes} nodes")
        self._write_connection()
        self.start_superlink()
        if self.secure:
            for i in range(self.nodes):
                self.flwr("supernode", "register", str(self.folder / f"node-{i}.pub"), "loopback")
                self.say(f"registered the key of SuperNode {i}")
        for i in range(self.nodes):
            self.start_supernode(i)

    def __exit__(self, *error: object) -> None:
        self._stop_all()

    def _stop_all(self) -> None:
        """Stop all processes, the last one first."""
        self.say("stopping SuperNodes and SuperLink")
        for process in reversed(self._started):
            stop(process)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of all processes."""
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, **QUIET, "FLWR_HOME": str(self.folder), "PATH": path}

    def _write_connection(self) -> None:
        """Write the file in which `flwr run … loopback` finds the SuperLink."""
        trust = f'root-certificates = "{self.folder / "ca.crt"}"' if self.secure else ""
        (self.folder / "config.toml").write_text(
            f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\n'
            f'address = "127.0.0.1:{self.port}"\n{trust or "insecure = true"}\n'
        )

    def start_superlink(self) -> None:
        """Start the SuperLink. Its database keeps the identity of the nodes over restarts."""
        options = ["--host", "127.0.0.1", "--port", str(self.port)]
        options += ["--database", str(self.folder / "superlink.db")]
        if self.secure:
            for name in ("ca-certfile", "certfile", "keyfile"):
                file = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
                options += [f"--ssl-{name}", str(self.folder / file[name])]
            options += ["--enable-supernode-auth"]
        else:
            options += ["--insecure"]
        self.superlink = self._start("flower-superlink", options, "superlink")
        self._wait_for_port()

    def start_supernode(self, i: int) -> None:
        """Start SuperNode i."""
        options = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        options += ["--node-config", f"partition-id={i} num-partitions={self.nodes}"]
        if self.secure:
            options += ["--root-certificates", str(self.folder / "ca.crt")]
            options += ["--auth-supernode-private-key", str(self.folder / f"node-{i}.key")]
        else:
            options += ["--insecure"]
        self.supernodes[i] = self._start("flower-supernode", options, f"supernode-{i}")

    def revive_supernode(self, i: int, seconds: float = 120) -> None:
        """Start a node that was killed. A node with a key must wait until its heartbeat expires.

        Args:
            i: The number of the node.
            seconds: The longest time to try.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.start_supernode(i)
            try:
                self.supernodes[i].wait(15)  # a refused node ends after a few seconds
            except subprocess.TimeoutExpired:
                return
        raise RuntimeError(f"SuperNode {i} does not come up:\n{self.log(f'supernode-{i}')}")

    def wait_for_nodes(self, seconds: float = 120) -> None:
        """Wait until all nodes are connected."""
        end, before = time.monotonic() + seconds, -1
        while (online := self._online()) < self.nodes:
            if online != before:
                self.say(f"{online} of {self.nodes} nodes connected")
                before = online
            self.must_live()
            if time.monotonic() > end:
                raise RuntimeError(f"{online} of {self.nodes} nodes connected in {seconds:g} s")
            time.sleep(0.5)
        self.say(f"all {self.nodes} nodes connected")

    def _online(self) -> int:
        """The number of connected nodes."""
        output = self.flwr("supernode", "list", "loopback", "--format", "json")
        nodes = json.loads(output[output.index("{") :])["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    def must_live(self) -> None:
        """Raise RuntimeError with the end of the log if the SuperLink or a SuperNode has ended."""
        processes = {f"supernode-{i}": process for i, process in self.supernodes.items()}
        for name, process in {"superlink": self.superlink, **processes}.items():
            if process is not None and process.poll() is not None:
                last = "\n".join(self.log(name).splitlines()[-20:])
                raise RuntimeError(f"{name} has ended with code {process.returncode}:\n{last}")

    def run(self, settings: str = "", app: Path = APP) -> str:
        """Submit the app without waiting for its end. Returns the number of the run.

        Args:
            settings: The run config, as `name=value` words.
            app: The folder of the app.
        """
        options = ["--run-config", settings] if settings else []
        output = self.flwr("run", str(app), "loopback", "--format", "json", *options)
        return str(json.loads(output[output.index("{") :])["run-id"])

    def status(self, run: str) -> str:
        """The status of a run, such as `finished:completed`, `running:` or `finished:failed`."""
        output = self.flwr("list", "loopback", "--run-id", run, "--format", "json")
        return str(json.loads(output[output.index("{") :])["runs"][0]["status"])

    def follow(self, run: str) -> str:
        """Show the log of a run as it grows. Returns the last status of the run."""
        log = self._start("flwr", ["log", run, "loopback", "--stream"], "run")
        try:
            with open(self.folder / "run.log", encoding="utf-8", errors="replace") as shown:
                ended = False
                while not ended:
                    ended = log.poll() is not None
                    print(shown.read(), end="", flush=True)
                    self.must_live()
                    time.sleep(0.5)
        finally:
            stop(log)
        return self.wait(run, seconds=10)

    def wait(self, run: str, seconds: float) -> str:
        """Wait until a run has finished or the time is over. Returns its status."""
        end = time.monotonic() + seconds
        while not (status := self.status(run)).startswith("finished") and time.monotonic() < end:
            time.sleep(1)
        return status

    def flwr(self, *arguments: str) -> str:
        """Run the command `flwr`. Returns its output."""
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"flwr {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def log(self, name: str = "superlink") -> str:
        """The log of a process."""
        return (self.folder / f"{name}.log").read_text()

    def _start(self, command: str, options: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to the log of this name."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self._started.append(
                subprocess.Popen(
                    [str(BIN / command), *options],
                    env=self.environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # its own children can then be stopped with it
                )
            )
        self.say(f"started {command} (process {self._started[-1].pid}), its log is {log.name}")
        return self._started[-1]

    def _wait_for_port(self) -> None:
        """Wait until the SuperLink accepts connections, at most 30 seconds."""
        for _ in range(300):
            self.must_live()
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the SuperLink did not come up:\n{self.log()}")


def stop(process: subprocess.Popen[bytes], how: int = signal.SIGTERM) -> None:
    """Stop a process and all processes that it has started."""
    try:
        os.killpg(process.pid, how)
        process.wait(15)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def certificates(folder: Path) -> None:
    """Make a certificate authority, and a certificate that it signs for 127.0.0.1."""
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kvib example CA")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)

    def begun(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=30))
        )

    own = x509.BasicConstraints(ca=True, path_length=None)
    signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = begun(issuer, authority).add_extension(own, critical=True)
    root = root.add_extension(signs, critical=True)
    here = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    leaf = begun(subject, server).add_extension(here, critical=False)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(root.sign(authority, hashes.SHA384()).public_bytes(pem))
    (folder / "server.pem").write_bytes(leaf.sign(authority, hashes.SHA384()).public_bytes(pem))
    _keep(folder / "server.key", server, serialization.PrivateFormat.TraditionalOpenSSL)


def node_key(folder: Path, i: int) -> None:
    """Make the keys of node i, as `ssh-keygen -t ecdsa -b 384` does."""
    key = ec.generate_private_key(ec.SECP384R1())
    _keep(folder / f"node-{i}.key", key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    (folder / f"node-{i}.pub").write_bytes(public)


def _keep(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """Write a private key to a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    )


def deploy(folder: Path, options: argparse.Namespace) -> str:
    """Start a deployment, run the app and follow it. Returns the status of the run."""
    say(f"{options.nodes} nodes in {folder}; Ctrl-C stops everything")
    with Deployment(folder, options.nodes, not options.plain, say) as deployment:
        deployment.wait_for_nodes()
        run = deployment.run(
            f"clients={options.nodes} budget={options.budget} num-server-rounds={options.rounds} "
            f'folder="{folder}/run"'
        )
        say(f"run {run} is submitted; what follows is the log of its server")
        status = deployment.follow(run)
        say(f"run {run}: {status}")
    return status


def say(line: str) -> None:
    """Print a line with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)


def main() -> None:
    """Deploy as the command line says. Exit with an error unless the run completes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--nodes", type=int, default=3, help="Number of SuperNodes.")
    add("--rounds", type=int, default=5, help="Rounds of the run.")
    add("--budget", type=float, default=2, help="Clients per round.")
    add("--plain", action="store_true", help="Do without TLS and authentication.")
    add("--folder", type=Path, help="Folder to keep keys, logs, journal and model in.")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM also stops all processes
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="kvib-deploy-"))).resolve()
    try:
        status = deploy(folder, options)
    except RuntimeError as error:
        status = f"failed: {error}"
    except KeyboardInterrupt:
        status = "interrupted"
    if status != "finished:completed":
        sys.exit(f"{status}\nThe logs are in {folder}")
    if options.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

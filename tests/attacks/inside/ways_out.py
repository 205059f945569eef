"""Runs inside a sandbox: tries every way to an address outside of it, and prints what came of each.

Arguments: a port of the host, where every listener answers whoever comes, and addresses of the host.
"""

import json
import os
import socket
import struct
import sys

from attacks import attempt, write

PORT, HOSTS = int(sys.argv[1]), sys.argv[2:]
SECONDS = 2.0
OUTSIDE = ("192.0.2.1", "8.8.8.8", "1.1.1.1", "2001:4860:4860::8888")
# The usual address of a cloud's metadata, in the forms that parsers take for something else, and others' addresses.
METADATA = (
    "169.254.169.254", "2852039166", "0251.0376.0251.0376", "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe", "169.254.43518",
    "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "fd00:ec2::254", "fe80::a9fe:a9fe", "100.100.100.200", "168.63.129.16",
)  # fmt: skip
# Where engines put a resolver or themselves.
GATEWAYS = (
    "172.17.0.1",
    "172.18.0.1",
    "10.0.2.2",
    "192.168.65.2",
    "192.168.127.1",
    "10.88.0.1",
    "0.0.0.0",
    "169.254.0.1",
)
RESOLVERS = ("127.0.0.1", "127.0.0.11", "127.0.0.53", "8.8.8.8", "::1")
NAMES = (
    "example.com",
    "metadata.google.internal",
    "host.docker.internal",
    "gateway.docker.internal",
    "kubernetes.default.svc",
)
# One question for the address of example.com.
QUERY = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + b"\x07example\x03com\x00" + struct.pack(">HH", 1, 1)


def tcp(host, port):
    def action():
        with socket.create_connection((host, port), SECONDS) as connection:
            connection.settimeout(SECONDS)
            return "ok " + connection.recv(100).decode("latin-1")

    return action


def udp(host, port, data):
    def action():
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            s.settimeout(SECONDS)
            s.connect((host, port))
            s.send(data)
            return "ok " + s.recv(1000).decode("latin-1")

    return action


def icmp(host, kind):
    def action():
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        protocol = socket.IPPROTO_ICMPV6 if ":" in host else socket.IPPROTO_ICMP
        with socket.socket(family, kind, protocol) as s:
            s.settimeout(SECONDS)
            s.sendto(struct.pack(">BBHHH", 8, 0, 0, 1, 1), (host, 0))
            return "ok " + repr(s.recv(100))

    return action


def resolve(name):
    def action():
        try:
            return "ok " + repr(socket.getaddrinfo(name, 80))
        except socket.gaierror as error:
            return f"errno {error.errno}"

    return action


def spoof():
    """A name of ours for another address: not in the file that says so, nor through a file that a library reads."""
    with open("/etc/hosts", "a") as file:
        file.write("192.0.2.1 allowed.example\n")
    return "ok"


def spoof_by_alias():
    with open("/tmp/aliases", "w") as file:
        file.write("allowed localhost\n")
    os.environ["HOSTALIASES"] = "/tmp/aliases"
    return tcp("allowed", PORT)()


def main():
    out = {"interfaces": sorted(name for _, name in socket.if_nameindex())}
    with open("/proc/net/route") as routes:
        out["routes"] = routes.read().splitlines()[1:]
    for host in OUTSIDE:
        out[f"tcp {host}"] = attempt(tcp(host, 443))
        out[f"udp {host}"] = attempt(udp(host, 443, b"x"))
        for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
            out[f"icmp {host} {kind}"] = attempt(icmp(host, kind))
    for host in METADATA:
        out[f"metadata {host}"] = attempt(tcp(host, 80))
    for host in (*GATEWAYS, *HOSTS):
        out[f"host {host}"] = attempt(tcp(host, PORT))
        out[f"host udp {host}"] = attempt(udp(host, PORT, b"x"))
    for host in RESOLVERS:
        out[f"dns udp {host}"] = attempt(udp(host, 53, QUERY))
        out[f"dns tcp {host}"] = attempt(tcp(host, 53))
        out[f"dns tls {host}"] = attempt(tcp(host, 853))
    for name in NAMES:
        out[f"name {name}"] = attempt(resolve(name))
    out["spoof hosts"] = attempt(spoof)
    out["spoof resolver"] = attempt(write("/etc/resolv.conf"))
    out["spoof switch"] = attempt(write("/etc/nsswitch.conf"))
    out["spoof alias"] = attempt(spoof_by_alias)
    print(json.dumps(out))


main()
